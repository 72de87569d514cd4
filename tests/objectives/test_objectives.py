"""Objectives on models: what they return and what they refuse."""

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.objectives import ce, objective, ova
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming

STEP = Step(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), (2, 4))


def test_one_risk_per_task():
    model = nn.Linear(4, 3)
    risk = objective(ce)(model, STEP)
    expected = [nn.functional.cross_entropy(model(t.x), t.y).item() for t in STEP.tasks()]
    assert risk.tasks.tolist() == pytest.approx(expected, rel=1e-5)
    assert risk.total.item() == pytest.approx(sum(expected), rel=1e-5)


def test_losses_add_up():
    class Both(nn.Module):
        def forward(self, x):
            return Output(x[:, :3], torch.stack([x[:, :3], -x[:, :3]], dim=1))

    a, b, both = (objective(*losses)(Both(), STEP).tasks for losses in ((ce,), (ova,), (ce, ova)))
    torch.testing.assert_close(both, a + b)


def test_ova_without_a_head_is_explained():
    with pytest.raises(MedicError, match=naming("one-vs-all head")):
        objective(ce, ova)(nn.Linear(4, 3), STEP)


def test_a_model_that_returns_something_else_is_explained():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(MedicError, match=naming("tuple (6, 4) medic.Output")):
        objective(ce)(Pair(), STEP)


def test_no_loss_and_unknown_forward():
    with pytest.raises(MedicError, match=naming("loss")):
        objective()
    with pytest.raises(MedicError, match=naming("'tsk' 'task'")):
        objective(ce, forward="tsk")


def test_ova_of_one_class_has_no_negative():
    output = Output(torch.zeros(2, 1), torch.zeros(2, 2, 1))
    assert ova(output, torch.zeros(2, dtype=torch.long)).tolist() == pytest.approx([0.6931472] * 2)
