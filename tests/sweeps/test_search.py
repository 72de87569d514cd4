"""A search for numbers: it sees source validation alone, can be shared, and can be gone on with."""

import os
import signal
from types import SimpleNamespace

import pytest
from medic.methods.search import Choice, Range
from medic.runs.config import RunConfig

from medic.cli import main
from medic.errors import BusyError, DiskFullError, MedicError
from medic.runs.train import train
from medic.sweeps.search import Study, search_space, suggest

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
    best = again.best
    assert best.acc == max(trial.value for trial in again._study.trials if trial.value is not None)
    assert best.acc == again._study.trials[best.trial].value
    assert set(best.numbers) == {"lr", "weight", "anneal"}
    assert best.run.startswith(str(tmp_path))


def test_a_study_is_of_one_kind_of_runs(mini, tmp_path):
    study(mini, tmp_path, 1).run(print)
    with pytest.raises(MedicError, match=r"study 's' is of runs with iterations 4: give this search a name of its own"):
        study(mini, tmp_path, 1, iterations=3).run(print)
    assert study(mini, tmp_path, 1, seed=1).run(print).trials == 2


def test_a_trial_that_was_stopped_is_gone_on_with(mini, tmp_path, monkeypatch):
    asked = []

    def watched(config, watch, **options):
        asked.append(config)

        def interrupted(record):
            watch(record)
            if len(asked) == 1:
                os.kill(os.getpid(), signal.SIGINT)

        return train(config, watch=interrupted, **options)

    monkeypatch.setattr("medic.sweeps.search.train", watched)
    said = []
    with pytest.raises(KeyboardInterrupt):
        study(mini, tmp_path).run(said.append)
    assert said == ["trial 0: stopped; the next one of this study goes on with it"]
    found = study(mini, tmp_path, trials=1).run(said.append)
    assert (found.trials, found.complete) == (2, 1)
    assert asked[0] == asked[1]
    assert len(list(tmp_path.glob("*/done"))) == 1


def test_processes_that_share_a_study_draw_other_numbers(mini, tmp_path):
    """Both open it before either has a trial; one alone draws the same again."""
    one, other, alone = (
        Study(study(mini, tmp_path).config, "s", f"sqlite:///{tmp_path}/{name}.db", 1, sampler)
        for name, sampler in (("both", "random"), ("both", "tpe"), ("alone", "random"))
    )
    opened = [part._open(optuna) for part in (one, other)]
    drawn = []
    for part, shared in zip((one, other), opened, strict=True):
        trial = shared.ask()
        shared.sampler = part._sampler(optuna, trial.number)
        drawn.append(trial.suggest_float("lr", 0, 1))
    assert drawn[0] != drawn[1]
    again = alone._open(optuna)
    trial = again.ask()
    again.sampler = alone._sampler(optuna, trial.number)
    assert trial.suggest_float("lr", 0, 1) == drawn[0]


def test_a_trial_that_cannot_be_done_is_no_end(mini, tmp_path, monkeypatch):
    outcomes = [BusyError("run x is being written by another process"), MedicError("no room"), None]

    def first(config, **_):
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome
        return SimpleNamespace(path=tmp_path, record={"validation": {"acc": 0.5}})

    monkeypatch.setattr("medic.sweeps.search.train", first)
    said = []
    found = study(mini, tmp_path, trials=3).run(said.append)
    assert said[:2] == ["trial 0: run x is being written by another process", "trial 1: no room"]
    assert (found.trials, found.complete, found.best.acc) == (3, 1, 0.5)
    assert len({str(trial.params) for trial in found._study.trials}) == 3
    outcomes.append(DiskFullError("the disk is full"))
    with pytest.raises(DiskFullError):
        study(mini, tmp_path, trials=2).run(said.append)


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
    other = RunConfig(dataset=mini, method="vrex", penalty="coral", target="street", optimizer="adam")
    assert set(search_space(other)) == {"lr", "gamma"}
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
        (["--storage", "nonsense://me:secret@host/db"], "storage nonsense://host/… cannot be used: Can't load plugin"),
        (["--storage", "postgresql://u:sec/ret@host/db?password=secret"], "storage postgresql://… cannot be used: "),
        (["--storage", "postgresql://u@host:secret/db"], "storage postgresql://host/… cannot be used: ValueError"),
        (["--storage", "password=secret"], "storage is no address: give sqlite:///FILE"),
        (["--sampler", "grid"], "unknown sampler 'grid'"),
    ],
)
def test_mistakes_are_named(mini, tmp_path, capsys, arguments, message):
    command = ["search", "--dataset", mini, "--target", "street", "--output", str(tmp_path), "--iterations", "2"]
    assert main([*command, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "secret" not in said
