"""Runs that are stopped anywhere, and gone on with, are as if they never were."""

import signal
from contextlib import contextmanager

import pytest
import torch

import medic
from medic.errors import MedicError
from medic.evaluation.evaluator import Evaluator
from medic.methods import METHODS
from medic.results.runs import find_runs
from medic.results.wording import short
from medic.runs import directory, environment
from medic.runs.interrupts import Stopped
from medic.training import Trainer
from medic.utils.progress import Progress
from tests.messages import naming
from tests.runs.parts import in_parts
from tests.runs.short import SHORT

pytestmark = pytest.mark.usefixtures("small_adversaries")

SOONER = {
    "hyprometa": {"batch_size": 36, "hparams": {"trust": 1}},
    "mvdg": {"hparams": {"persist_inner_state": 1}},
    "fishr": {"hparams": {"weight": 1}},  # the default weight diverges in a network without batch norm
}
"""Settings with which a system has, within four iterations, all the state that it can: here an epoch is one of them."""


def test_a_finished_run_is_not_done_again(run, mini, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in run.path.iterdir()}
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("trained again"))
    again = medic.train(dataset=mini, method="medic++", output=str(run.path.parent), **SHORT)
    assert again.path == run.path
    assert {path: path.stat().st_mtime_ns for path in run.path.iterdir()} == before


QUICK = ("erm", "fish", "mldg", "medic", "medic++", "arpl", "rsc")
"""Methods whose strategies, systems and callbacks differ; the others are tried with the slow tests."""


@pytest.mark.parametrize("method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_every_method_is_the_same_when_interrupted(method, mini, tmp_path, monkeypatch):
    """Stopped after its first iteration and its third, and started again: the same bytes as when left alone."""
    settings = {"dataset": mini, "method": method, **SHORT, "batch_size": 2 if method in ("medic++", "arith") else 8}
    settings |= SOONER.get(method, {})
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (1, 3))
    for name in ("model.safetensors", "predictions.npz", "model.json"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    losses = [[record["loss"] for record in run.records] for run in (whole, parts)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("averaging", "measurement", "seconds", "expected"),
    [
        ("tail", "record", 100, range(10)),
        ("tail", "record", 1, [*range(10), *range(5, 10)]),
        ("swad", "record", 100, range(10)),
        ("swad", "validation", 100, range(10)),
        ("swad", "validation", 1, [*range(10), *range(5, 10)]),
    ],
)
def test_no_iteration_is_repeated_after_a_long_evaluation(
    mini, tmp_path, monkeypatch, averaging, measurement, seconds, expected
):
    """Stopped at once in its second evaluation, or in one for the weight average: the same as if left alone.

    A checkpoint is saved before an evaluation that takes more than a minute, and not before a short one.
    """
    settings = {"dataset": mini, "method": "erm", **SHORT, "iterations": 10, "evaluate_every": 5}
    settings["averaging"] = averaging
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    measured, pause, calls = getattr(Evaluator, measurement), Progress.pause, []

    def stopped(evaluator):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(evaluator)

    @contextmanager
    def lasting(progress, state, images=0):
        with pause(progress, state, images):
            yield
        progress.pause_seconds[state] = seconds

    step, steps = Trainer.step, []
    monkeypatch.setattr(Progress, "pause", lasting)
    monkeypatch.setattr(Evaluator, measurement, stopped)
    monkeypatch.setattr(Trainer, "step", lambda trainer: steps.append(trainer.iteration) or step(trainer))
    with pytest.raises(KeyboardInterrupt):
        medic.train(**settings, output=str(tmp_path / "parts"))
    parts = medic.train(**settings, output=str(tmp_path / "parts"))
    assert steps == list(expected)
    for name in ("model.safetensors", "predictions.npz", "model.json"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    losses = [[record["loss"] for record in run.records] for run in (whole, parts)]
    assert losses[0] == losses[1]
    assert all(record["step_time"] > 1e-4 for record in parts.records)  # an iteration of this network takes longer


def test_a_run_resumed_at_another_commit_is_of_both(mini, tmp_path, monkeypatch):
    commits = iter(["a" * 40, "a" * 40, "b" * 40 + "-dirty"])
    for module in (environment, directory):
        monkeypatch.setattr(module, "commit", lambda: next(commits))
    settings = {"dataset": mini, "method": "erm", **SHORT}
    run = in_parts(settings, tmp_path, monkeypatch, (1, 3))
    [result] = find_runs([tmp_path]).finished
    assert result.environment["resumed"] == [{"iteration": 3, "commit": "b" * 40 + "-dirty"}]
    assert short(result.environment["commit"]) == "a" * 12 + "+" + "b" * 12 + "-dirty"
    assert result.path == run.path


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dropout_draws_are_in_the_checkpoint(mini, tmp_path, monkeypatch, device):
    """A backbone with dropout draws from the global generator, whose state must be saved too."""
    from medic.models import OURS

    make, preprocessing = OURS["small"]

    def dropped(size):
        network = make(size)
        network.stages[-1] = torch.nn.Dropout(0.5)
        return network

    monkeypatch.setitem(OURS, "dropped", (dropped, preprocessing))
    settings = {"dataset": mini, "method": "erm", "backbone": "dropped", **SHORT, "device": device}
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (1,), signal.SIGTERM)
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_batch_norm_and_adam_resume(mini, tmp_path, monkeypatch):
    """A timm backbone with batch norm, trained with Adam, clipping and a larger rate for the heads."""
    settings = {
        "dataset": mini, "method": "fish-domainbed", "backbone": "test_resnet", "optimizer": "adamw", "clip_norm": 1.0,
        "head_lr_scale": 10.0, "lr": 1e-3, **SHORT,
    }  # fmt: skip
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (3,))
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_damaged_checkpoint_is_named(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "step", lambda self: signal.raise_signal(signal.SIGINT) or [0.0])
    settings = {"dataset": mini, "method": "erm", "output": str(tmp_path), **SHORT, "iterations": 10**6}
    with pytest.raises(Stopped):
        medic.train(**settings)
    (path,) = tmp_path.glob("*/checkpoint/last.pt")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(MedicError, match=naming("last.pt delete")):
        medic.train(**settings)


def test_two_processes_do_not_do_the_same_run(mini, tmp_path, monkeypatch):
    class Held(Exception):
        pass

    def also(self):
        with pytest.raises(MedicError, match=naming("another process")):
            medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)
        raise Held

    monkeypatch.setattr(Trainer, "step", also)
    with pytest.raises(Held):
        medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)


def test_a_run_keeps_its_number_of_threads_when_it_resumes(mini, tmp_path, monkeypatch):
    """Sums of floats depend on it, and another machine or `--jobs` would set another."""
    settings = {"dataset": mini, "method": "erm", **SHORT}
    used, train, step, before = [], medic.train, Trainer.step, torch.get_num_threads()

    def counted(self):
        used.append(torch.get_num_threads())
        return step(self)

    threads = iter([3, 1])
    monkeypatch.setattr(Trainer, "step", counted)
    monkeypatch.setattr(medic, "train", lambda **options: train(**options, threads=next(threads)))
    in_parts(settings, tmp_path, monkeypatch, (2,))
    assert used == [3] * 4
    assert torch.get_num_threads() == before
