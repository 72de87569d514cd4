"""The state of a trainer: what a checkpoint must hold, and what it must not."""

import pytest
import torch

import medic
from medic.errors import TrainingError
from medic.training.averaging import Swad
from tests.built import built
from tests.runs.conftest import folder  # noqa: F401 - a fixture
from tests.runs.parts import in_parts


def test_the_optimizer_restarts_when_a_penalty_reaches_its_weight(mini):
    trainer = built(dataset=mini, method="vrex", optimizer="adam", hparams={"anneal": 2}, batch_size=2)
    steps = []
    for _ in range(4):
        trainer.step()
        steps.append({int(state["step"]) for state in trainer.optimizer.state.values()})
    assert steps == [{1}, {2}, {1}, {2}]  # Adam counts its updates since the last restart


def test_tasks_drawn_ahead_are_in_the_checkpoint(folder, tmp_path, monkeypatch):  # noqa: F811
    """Streamed images are expected ahead of their iteration, so that a checkpoint finds tasks drawn but not used."""
    settings = {**folder, "store": "stream", "iterations": 6, "evaluate_every": 6, "quiet": True}
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (1, 3))
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_weights_that_are_not_finite_are_never_saved(mini):
    trainer = built(dataset=mini, method="erm", batch_size=2)
    trainer.step()
    trainer.check_finite()
    with torch.no_grad():
        next(trainer.model.parameters())[0] = float("nan")
    with pytest.raises(TrainingError, match="iteration 1"):
        trainer.check_finite()


def resumed(swad):
    other = Swad(swad.converge, swad.tolerance, swad.ratio)
    other.load_state_dict(swad.state_dict())
    return other


def test_swad_stays_dead():
    swad = Swad(converge=2, tolerance=2)
    for k, loss in enumerate([1, 0.5, 0.6, 0.7, 0.8, 0.8]):
        swad.update([torch.tensor([float(k)])])
        swad.close(loss, k)
    assert swad.dead
    again = resumed(swad)
    assert again.dead
    again.update([torch.tensor([99.0])])
    again.close(0.1, 6)
    assert again.dead
    assert again.result() == swad.result()


def test_swad_goes_on_inside_a_segment():
    """Three values of a segment are averaged with equal weights, also if it was resumed after two of them."""
    swad = Swad()
    swad.update([torch.tensor([0.0])])
    swad.update([torch.tensor([3.0])])
    swad = resumed(swad)
    swad.update([torch.tensor([9.0])])
    swad.close(1.0, 2)
    assert swad.result() == [torch.tensor([4.0])]
