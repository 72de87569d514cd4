"""A search for numbers: it sees source validation alone, can be shared, and can be gone on with."""

import pytest

from medic.cli import main
from medic.errors import MedicError
from medic.experiments.config import RunConfig
from medic.experiments.search import Study, search_space, suggest
from medic.methods.search import Choice, Range

optuna = pytest.importorskip("optuna")

SHORT = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "track": "none"}


def study(mini, tmp_path, trials=2, **settings):
    config = RunConfig(**{"dataset": mini, "method": "vrex", "output": str(tmp_path), **SHORT, **settings})
    return Study(config, "s", f"sqlite:///{tmp_path}/study.db", trials)


def test_a_study_goes_on_and_finds_the_best(mini, tmp_path):
    said = []
    assert study(mini, tmp_path).run(said.append).trials == 2
    again = study(mini, tmp_path).run(said.append)
    assert again.trials == 4
    assert len({str(trial.params) for trial in again._study.trials}) == 4
    value, numbers, path = again.best
    assert value == max(trial.value for trial in again._study.trials if trial.value is not None)
    assert set(numbers) == {"lr", "weight", "anneal"}
    assert path.startswith(str(tmp_path))


def test_a_rate_at_which_it_diverges_is_no_end(mini, tmp_path):
    said = []
    with pytest.raises(MedicError, match="no trial was trained to the end"):
        _ = study(mini, tmp_path, lr=1e30).run(said.append).best
    assert "the loss became" in said[0]


def test_numbers_that_are_given_are_not_searched(mini):
    config = RunConfig(dataset=mini, method="vrex", target="street")
    assert set(search_space(config)) == {"lr", "weight", "anneal"}
    given = RunConfig(dataset=mini, method="vrex", target="street", lr=0.1, hparams="weight=3")
    assert set(search_space(given)) == {"anneal"}
    with pytest.raises(MedicError, match="nothing to search for"):
        search_space(RunConfig(dataset=mini, method="erm", target="street", lr=0.1))


def test_laws_are_asked_for_as_they_are():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    rate, share, batch = Range("rate", -5, -3, 10.0), Range("share", 0, 0.5), Range("batch", 3, 5, 2.0, True)
    for _ in range(50):
        trial = study.ask()
        assert 1e-5 <= suggest(trial, "rate", rate) <= 1e-3
        assert 0 <= suggest(trial, "share", share) <= 0.5
        assert suggest(trial, "batch", batch) in range(8, 33)
        assert suggest(trial, "tests", Choice("tests", (1, 2))) in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "0"], "trials is 0"),
        (["--storage", "nonsense://me:secret@host/db"], "storage nonsense://…@host/db"),
        (["--sampler", "grid"], "unknown sampler 'grid'"),
    ],
)
def test_mistakes_are_named(mini, tmp_path, capsys, arguments, message):
    command = ["search", "--dataset", mini, "--target", "street", "--output", str(tmp_path), "--iterations", "2"]
    assert main([*command, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "secret" not in said
