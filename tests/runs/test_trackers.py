"""What is sent elsewhere, and what never is."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import medic
from medic.data.benchmarks.own import parquet_rows
from medic.errors import MedicError
from medic.runs.environment import environment
from medic.runs.session import Session
from medic.runs.trackers import TRACKERS, scalars, start_trackers, tracker_names
from medic.sweeps.executors.ray import connect
from medic.sweeps.search import import_optuna
from medic.utils.command import without_secrets
from tests.built import plan_of
from tests.messages import naming

SHORT = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "quiet": True}


def test_tensorboard_has_every_evaluation(mini, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = medic.train(dataset=mini, method="erm", output=tmp_path, track="tensorboard", **SHORT)
    accumulator = events.EventAccumulator(str(run.path / "tensorboard"))
    accumulator.Reload()
    written = [(event.step, event.value) for event in accumulator.Scalars("target/acc")]
    assert written == [(record["iteration"], pytest.approx(record["target"]["acc"])) for record in run.records]
    assert "validation/acc" in accumulator.Tags()["scalars"]


def test_tensorboard_has_an_evaluation_once_that_was_repeated(mini, tmp_path, monkeypatch):
    """The run is stopped after its first evaluation, and before the checkpoint that would contain it."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = {"dataset": mini, "method": "erm", "output": tmp_path, "track": "tensorboard", **SHORT}
    save = Session._save

    def stopped(session):
        if session.records:
            raise KeyboardInterrupt
        save(session)

    monkeypatch.setattr(Session, "_save", stopped)
    with pytest.raises(KeyboardInterrupt):
        medic.train(**settings)
    monkeypatch.setattr(Session, "_save", save)
    run = medic.train(**settings)
    accumulator = events.EventAccumulator(str(run.path / "tensorboard"))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("target/acc")] == [one["iteration"] for one in run.records]


@pytest.mark.slow
def test_mlflow_has_every_evaluation(mini, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = medic.train(dataset=mini, method="erm", output=tmp_path, track="mlflow", **SHORT)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("medic").experiment_id
    (tracked,) = client.search_runs([experiment])
    written = [(one.step, one.value) for one in client.get_metric_history(tracked.info.run_id, "target/acc")]
    assert written == [(record["iteration"], pytest.approx(record["target"]["acc"])) for record in run.records]
    assert (tracked.data.params["method"], tracked.info.status) == ("erm", "FINISHED")


@pytest.mark.slow
def test_wandb_takes_a_run_offline(mini, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    argv = ["/bin/medic", "search", "--storage", "postgresql://me:S3CRET@host/db"]
    monkeypatch.setattr(sys, "argv", argv)
    run = medic.train(dataset=mini, method="erm", output=tmp_path, track="wandb", **SHORT)
    assert list((run.path / "wandb").glob(f"offline-run-*/run-{run.path.name}.wandb"))
    assert sys.argv == ["/bin/medic", "search", "--storage", "postgresql://me:S3CRET@host/db"]
    assert not [file for file in run.path.rglob("*") if file.is_file() and b"S3CRET" in file.read_bytes()]


def test_a_server_that_goes_away_does_not_end_a_run(mini, tmp_path, monkeypatch, capsys):
    def gone(self, record):
        raise ConnectionError("no route to host")

    pytest.importorskip("tensorboard")
    monkeypatch.setattr("medic.runs.trackers.TensorBoard.record", gone)
    run = medic.train(dataset=mini, method="erm", output=tmp_path, track="tensorboard", **{**SHORT, "quiet": False})
    assert len(run.records) == 3  # and one of averaged weights
    said = capsys.readouterr().err
    assert len(re.findall(r"'tensorboard' .*no route to host", said)) == 1


def test_none(mini, tmp_path):
    run = medic.train(dataset=mini, method="erm", output=tmp_path, track="none", **SHORT)
    assert not (run.path / "tensorboard").exists()


def test_where_numbers_go_does_not_change_the_run(mini, tmp_path):
    names = {medic.train(dataset=mini, output=tmp_path, track=track, **SHORT).path.name for track in ("none", "auto")}
    assert len(names) == 1


@pytest.mark.parametrize(
    ("names", "message"), [("tensorbord", "'tensorbord' 'tensorboard'"), ("a,b", "'a' tensorboard")]
)
def test_mistakes_are_named(names, message):
    with pytest.raises(MedicError, match=naming(message)):
        tracker_names(names)


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MedicError, match=naming("wandb pip install 'medic-osdg[wandb]'")):
        tracker_names("wandb")


@pytest.mark.parametrize(
    ("package", "ask"),
    [
        ("optuna", lambda path: import_optuna()),
        ("pandas", lambda path: medic.load_runs(path).to_frame()),
        ("pyarrow", lambda path: parquet_rows(path / "t.parquet")),
        ("ray", lambda path: connect(None, None, 1)),
    ],
)
def test_extras_are_named_as_they_are_installed(package, ask, monkeypatch, tmp_path):
    """By the name of our distribution, which `medic` is not, and the extra that has the package."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MedicError, match=naming(package)) as error:
        ask(tmp_path)
    told = re.search(r": pip install '([\w-]+)\[(\w+)\]'$", str(error.value))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert told
    assert told[1] == project["name"]
    assert project["optional-dependencies"][told[2]][0].startswith(f"{package}>=")


def test_only_numbers_are_sent():
    record = {"loss": 0.5, "target": {"acc": 1, "score": "bcls"}, "averaged": True, "args": {"seed": 3}, "hparams": {}}
    assert dict(scalars(record)) == {"loss": 0.5, "target/acc": 1.0}


def test_credentials_in_what_others_say_are_left_out(monkeypatch, tmp_path):
    def refuse(path, run, settings, iteration):
        raise OSError("API request to https://bob:hunter2@ml.example.org/api failed")

    monkeypatch.setitem(TRACKERS, "tensorboard", refuse)
    with pytest.raises(MedicError, match=naming("https://ml.example.org/api failed")):
        start_trackers("tensorboard", tmp_path, "0", {}, 0)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("postgresql://me:secret@host/db", "postgresql://host/…"),
        ("--x=mysql+pymysql://root:pa55@10.0.0.1:3306/x", "--x=mysql+pymysql://10.0.0.1/…"),
        ("postgresql://host/db?user=u&password=s3cret", "postgresql://host/…"),
        ("postgresql://u:pa/ss@host/db", "postgresql://…"),
        ("postgresql://u:p@ss@host/db", "postgresql://…"),
        ("postgresql://u:p@ss/word@host/db", "postgresql://…"),
        ("postgresql://u:p?ss@host/db", "postgresql://…"),
        ("postgresql://u:pa ss@host/db", "postgresql://host/…"),
        ("postgresql://host/db?password=p@ss", "postgresql://…"),
        ("postgresql://u:p@[::1]:5432/db", "postgresql://[::1]/…"),
        ("sqlite:///file:x?password=s3cret", "sqlite://…"),
        ("sqlite:///here.db", "sqlite:///here.db"),
        ("ray://10.0.0.1", "ray://10.0.0.1"),
        ("postgresql:/u:secret@host/db", "…"),
        ("--x=postgresql:u:secret@host://db", "--x=…"),
        ("u:secret@host/db", "…"),
        ("--seed=3", "--seed=3"),
    ],
)
def test_addresses_lose_their_secrets(address, kept):
    assert without_secrets(address) == kept
    assert without_secrets(kept) == kept


@pytest.mark.parametrize("storage", [["--storage", "postgresql://me:secret@host/db"], ["--storage=secret"]])
def test_no_secret_is_in_an_environment_file(mini, mini_dataset, monkeypatch, storage):
    monkeypatch.setattr(sys, "argv", ["/bin/medic", "search", *storage, "--trials", "2"])
    monkeypatch.setenv("WANDB_API_KEY", "another-secret")
    written = environment(mini_dataset, plan_of(dataset=mini))
    assert "secret" not in json.dumps(written)
    assert written["command"][-2:] == ["--trials", "2"]
