"""Hyperparameter search: it sees source validation alone, can be shared, and can be resumed."""

import os
import re
import signal
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import pytest

from medic.cli import main
from medic.config.resolve import resolve
from medic.errors import BusyError, DiskFullError, MedicError
from medic.runs.run import Run
from medic.runs.train import train
from medic.sweeps.rehearsal import rehearsals
from medic.sweeps.search import Study, finished_trials, search_space, suggest
from medic.utils.parts import Choice, Range
from tests.messages import naming

optuna = pytest.importorskip("optuna")

SHORT = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "track": "none"}


def study(mini, tmp_path, trials=2, **settings):
    study_settings = {"dataset": mini, "method": "vrex", "output": str(tmp_path), **SHORT, **settings}
    return Study(study_settings, "s", f"sqlite:///{tmp_path}/study.db", trials)


@pytest.fixture(autouse=True, scope="module")
def unsynchronised():
    """Do not wait for the disk at every commit of a database, which takes longer than the trials."""
    from sqlalchemy import Engine, event

    def connected(connection, _):
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level("INFO", "medic.sweeps.search")
    return caplog


def test_a_study_is_continued_and_finds_the_best(mini, tmp_path):
    assert len(study(mini, tmp_path).run().trials) == 2
    again = study(mini, tmp_path).run()
    assert len(again.trials) == 4
    assert len({str(trial.params) for trial in again.trials}) == 4
    best = again.best_trial
    assert best.value == max(trial.value for trial in finished_trials(again))
    assert set(best.params) == {"lr", "weight", "anneal"}
    assert best.user_attrs["run"].startswith(str(tmp_path))


def test_a_study_is_of_one_kind_of_runs(mini, tmp_path):
    study(mini, tmp_path, 1).run()
    with pytest.raises(MedicError, match=r"study 's' contains runs with iterations 4: .* --study"):
        study(mini, tmp_path, 1, iterations=3).run()
    assert len(study(mini, tmp_path, 1, seed=1).run().trials) == 2


def test_a_stopped_trial_is_resumed(mini, tmp_path, monkeypatch, logged):
    attempts = []

    def watched(settings, watch, **options):
        attempts.append(settings)

        def interrupted(record):
            watch(record)
            if len(attempts) == 1:
                os.kill(os.getpid(), signal.SIGINT)

        return train(settings, watch=interrupted, **options)

    monkeypatch.setattr("medic.sweeps.search.train", watched)
    with pytest.raises(KeyboardInterrupt):
        study(mini, tmp_path).run()
    assert [message.partition(" ")[0] for message in logged.messages] == ["saving", "trial"]
    assert logged.messages[1] == "trial 0: stopped; the next trial of this study resumes it"
    optuna_study = study(mini, tmp_path, trials=1).run()
    assert (len(optuna_study.trials), len(finished_trials(optuna_study))) == (2, 1)
    assert attempts[0] == attempts[1]
    assert len(list(tmp_path.glob("*/done"))) == 1


def test_processes_that_share_a_study_draw_other_numbers(mini, tmp_path):
    """Both open it before either has a trial; one alone draws the same again."""
    one, other, alone = (
        Study(study(mini, tmp_path).settings, "s", f"sqlite:///{tmp_path}/{name}.db", 1, sampler)
        for name, sampler in (("both", "random"), ("both", "tpe"), ("alone", "random"))
    )

    def draw(part, shared):
        trial = shared.ask()
        part.draw_with(shared, trial.number)
        return trial.suggest_float("lr", 0, 1)

    opened = [part.open() for part in (one, other)]
    first, second = draw(one, opened[0]), draw(other, opened[1])
    assert first != second
    assert draw(alone, alone.open()) == first


def test_a_failed_trial_does_not_end_the_search(mini, tmp_path, monkeypatch, logged):
    outcomes = [BusyError("run x is being written by another process"), MedicError("no room"), None]

    def first(settings, **_):
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome
        return SimpleNamespace(path=tmp_path, record={"validation": {"acc": 0.5}}, learned=True)

    monkeypatch.setattr("medic.sweeps.search.train", first)
    optuna_study = study(mini, tmp_path, trials=3).run()
    assert logged.messages[:2] == ["trial 0: run x is being written by another process", "trial 1: no room"]
    assert (len(optuna_study.trials), len(finished_trials(optuna_study)), optuna_study.best_value) == (3, 1, 0.5)
    assert len({str(trial.params) for trial in optuna_study.trials}) == 3
    outcomes.append(DiskFullError("the disk is full"))
    with pytest.raises(DiskFullError):
        study(mini, tmp_path, trials=2).run()


def test_a_diverging_trial_does_not_end_the_search(mini, tmp_path, logged):
    optuna_study = study(mini, tmp_path, lr=1e30).run()
    with pytest.raises(MedicError, match="no trial finished"):
        finished_trials(optuna_study)
    assert re.match(naming("trial 0: became iteration"), logged.messages[0])


def test_given_hyperparameters_are_not_searched(mini):
    settings = {"dataset": mini, "method": "vrex", "target": "street"}
    assert set(search_space(settings)) == {"lr", "weight", "anneal"}
    assert set(search_space({**settings, "lr": 0.1, "hparams": "weight=3"})) == {"anneal"}
    for iterations, most in ((1000, 1000), (5000, 5000), (9000, 5000)):  # a later start would be no penalty at all
        assert search_space({**settings, "method": "fishr", "iterations": iterations})["anneal"].high == most
    assert set(search_space({**settings, "penalty": "coral", "optimizer": "adam"})) == {"lr", "gamma"}
    with pytest.raises(MedicError, match="'erm'"):
        search_space({**settings, "method": "erm", "lr": 0.1})


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
        (["--trials", "0"], "--trials must be a whole number of at least 1, got 0"),
        (["--storage", "nonsense://me:secret@host/db"], "cannot use --storage nonsense://host/…: Can't load plugin"),
        (["--storage", "postgresql://u:sec/ret@host/db?password=secret"], "cannot use --storage postgresql://…: "),
        (["--storage", "postgresql://u@host:secret/db"], "cannot use --storage postgresql://host/…: ValueError"),
        (["--storage", "password=secret"], "--storage must be a URL: sqlite:///FILE"),
        (["--sampler", "grid"], "unknown sampler 'grid'"),
    ],
)
def test_mistakes_are_named(mini, tmp_path, capsys, arguments, message):
    command = ["search", "--dataset", mini, "--target", "street", "--output", str(tmp_path), "--iterations", "2"]
    assert main([*command, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "secret" not in said


def rehearsed(mini, tmp_path, trials=2, **settings):
    return replace(study(mini, tmp_path, trials, **settings), selection="leave-one-out")


def test_rehearsals_leave_out_every_source_and_known_class_once(mini, tmp_path):
    """Neither the target nor an unknown class has a part in them."""
    plan = resolve({"dataset": mini, "target": "street", "split": None, "output": str(tmp_path)})
    runs = list(rehearsals(plan))
    assert [run["target"] for run in runs] == [["handwritten"], ["printed"], ["blended"]]
    assert [run["unknown"] for run in runs] == [["0", "3"], ["1", "4"], ["2", "5"]]
    for run in runs:
        problem = resolve(run).config.data
        assert "street" not in (*problem.sources, *problem.target)
        assert sorted((*problem.known, *problem.unknown)) == plan.config.data.known
        assert problem.sources == [name for name in plan.config.data.sources if name not in run["target"]]


def test_rehearsals_of_a_closed_set_keep_all_classes(mini):
    plan = resolve({"dataset": mini, "target": "street", "known": [str(k) for k in range(10)], "unknown": []})
    assert all(len(run["known"]) == 10 and not run["unknown"] for run in rehearsals(plan))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"sources": ["printed"]}, "two source domains --selection validation"),
     ({"partial": {"printed": ["0", "1"]}}, "partial --selection validation"),
     ({"known": ["0", "1"]}, "three known classes got 2 --selection validation")],
)  # fmt: skip
def test_what_cannot_be_rehearsed(mini, settings, message):
    plan = resolve({"dataset": mini, "target": "street", "method": "erm", **settings})
    with pytest.raises(MedicError, match=naming(message)):
        list(rehearsals(plan))


def test_a_search_by_rehearsals(mini, tmp_path, logged):
    search = rehearsed(mini, tmp_path)
    optuna_study = search.run()
    best = max(finished_trials(optuna_study), key=lambda trial: trial.value)
    runs = [Run(path.parent) for path in sorted((tmp_path / "rehearsals").glob("*/done"))]
    assert len(runs) == 3 * len(finished_trials(optuna_study))
    rate = best.params["lr"]
    values = [run.metrics["oscr"] for run in runs if run.settings["lr"] == pytest.approx(rate)]
    assert best.value == pytest.approx(fmean(values))
    assert f"leave-one-out oscr {100 * best.value:.2f}" in logged.text
    chosen = search.train_best(best)
    assert (chosen.settings["lr"], chosen.settings["target"]) == (pytest.approx(rate), ["street"])
    with pytest.raises(MedicError, match=naming("judge leave-one-out oscr --study")):
        study(mini, tmp_path, 1).run()


def test_what_cannot_be_rehearsed_is_found_before_the_first_trial(mini, tmp_path, monkeypatch):
    monkeypatch.setattr("medic.sweeps.search.train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(MedicError, match=naming("two source domains")):
        rehearsed(mini, tmp_path, method="erm", sources=["printed"]).run()
    with pytest.raises(MedicError, match=naming("6 class splits")):
        rehearsed(mini, tmp_path, method="medic++", class_splits=6).run()


def test_two_sources_keep_two_known_classes(mini):
    settings = {"dataset": mini, "target": "street", "sources": ["printed", "blended"], "known": ["0", "1", "2"]}
    plan = resolve({**settings, "method": "erm"})
    assert [run["known"] for run in rehearsals(plan)] == [["1", "2"], ["0", "2"]]


def test_a_study_of_an_earlier_version_is_refused(mini, tmp_path):
    search = study(mini, tmp_path, 1)
    optuna.create_study(study_name="s", storage=search.storage).set_user_attr("settings", {"method": "vrex"})
    with pytest.raises(MedicError, match=naming("earlier version --study")):
        search.run()


@pytest.mark.parametrize(
    ("search", "settings", "message"),
    [({"metric": "oscr"}, {}, "--metric requires --selection leave-one-out"),
     ({"selection": "leave-one-out", "metric": "oscr"}, {"known": [str(k) for k in range(10)]}, "oscr --metric acc"),
     ({"selection": "leave-one-out", "metric": "f1"}, {}, "metric 'f1' acc hscore oscr auroc")],
)  # fmt: skip
def test_judges_that_do_not_exist(mini, tmp_path, search, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        replace(study(mini, tmp_path, **settings), **search).run()
