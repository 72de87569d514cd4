"""EBiL-HaDS: what its risk is made of, and that the model and the follower leave each other alone."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from medic.errors import MedicError
from medic.models import HALVES, Backbone, Classifier
from medic.objectives import Ova, Setup, ce
from medic.strategies import TwoStep
from medic.systems.ebil_hads import EbilHads, confidence, discrepancy, evidential_loss
from medic.tasks import Step
from tests.messages import naming


class Small(nn.Module):
    """A backbone of one stage, with batch norm."""

    channels = 4

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.stages = nn.ModuleList([nn.Identity()])

    def forward(self, x):
        return self.stages[0](functional.softplus(self.norm(self.convolution(x)))).mean((2, 3))


SETUP = Setup(tasks=2, images=8, shape=(3, 4, 4))


def make(forward="task", **numbers):
    torch.manual_seed(0)
    model = Classifier(Backbone(Small(), 4, HALVES), 3, "branches").double()
    loss = EbilHads([ce, Ova(0.5)], passes=forward, **numbers)
    loss.prepare(model, SETUP)
    return model, loss.double()


def steps():
    generator = torch.Generator().manual_seed(1)
    y = torch.tensor([0, 1, 2, 0, 2, 2, 1, 0])
    return [
        Step(torch.randn(8, 3, 4, 4, generator=generator, dtype=torch.float64), y, (4, 4), index=index)
        for index in range(2)
    ]


def test_the_risk_of_a_task():
    model, loss = make(weight=0.5)
    model.eval()
    (one, _) = steps()
    expected = []
    for task in one.tasks():
        first, second = model(task.x).branches
        plain = sum(loss(branch, task.y) for branch in (first, second) for loss in (ce, Ova(0.5))) / 2
        weights = torch.sigmoid(loss.follower.linear(loss.follower.eval().backbone(task.x))).squeeze(1) + 1e-5
        evidence = evidential_loss(first.logits, task.y) + evidential_loss(second.logits, task.y)
        spread = discrepancy(first.features, second.features)
        expected.append((plain + weights * ce(first, task.y) + evidence).mean() - 0.5 * spread)
    risk = loss(model, one)
    torch.testing.assert_close(risk.tasks, torch.stack(expected))
    assert risk.penalty is None
    torch.testing.assert_close(risk.logits, model(one.x).logits.detach())


def test_the_risk_without_a_clue():
    """All logits 0, all weights ½: ln 2 + ln C + (½ + 1e-5) ln C + 2 ln C."""
    model, loss = make(weight=0.0)
    for layer in (*model.head.heads.parameters(), *loss.follower.linear.parameters()):
        nn.init.zeros_(layer)
    expected = math.log(2) + (3.5 + 1e-5) * math.log(3)
    assert loss(model, steps()[0]).tasks.tolist() == pytest.approx([expected] * 2, abs=1e-12)


def test_branches_are_pushed_apart():
    """The discrepancy is subtracted."""
    model, loss = make(weight=1.0)
    model.eval()
    plain = EbilHads([ce, Ova(0.5)], passes="task", weight=0.0)
    plain.follower = loss.follower
    one = steps()[0]
    assert (loss(model, one).tasks < plain(model, one).tasks).all()


def test_the_second_order_is_that_of_differences():
    """d/dθ [A(θ) + B(θ - α A'(θ))] along a direction, batch norm in training mode.

    Without the discrepancy, whose bandwidths are constants for the gradient alone.
    """
    model, loss = make(weight=0.0)
    model.head.dropout.p = 0.0
    strategy, pair = TwoStep(0.1, second_order=True), steps()
    names, start = zip(*[(name, p.detach().clone()) for name, p in model.named_parameters()], strict=True)
    direction = [torch.randn_like(value) for value in start]

    def value(share):
        moved = [(a + share * b).requires_grad_() for a, b in zip(start, direction, strict=True)]
        call = lambda x: functional_call(model, fast, (x,))  # noqa: E731
        fast = dict(zip(names, moved, strict=True))
        first = loss(call, pair[0]).total
        slopes = torch.autograd.grad(first, moved)
        fast = {name: p - 0.1 * slope for name, p, slope in zip(names, moved, slopes, strict=True)}
        return (first + loss(call, pair[1]).total).item()

    strategy(model, pair, loss)
    derivative = sum((p.grad * b).sum() for p, b in zip(model.parameters(), direction, strict=True)).item() * 4
    assert derivative == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-6)


def test_the_main_loss_does_not_reach_the_follower():
    model, loss = make()
    follower = loss.follower
    before = {name: value.clone() for name, value in follower.state_dict().items()}
    reached = torch.autograd.grad(loss(model, steps()[0]).total, list(follower.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)
    TwoStep(second_order=True)(model, steps(), loss)
    assert all(parameter.grad is None for parameter in follower.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    for name, value in follower.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert loss.parameter_groups() == []


def test_the_follower_learns_the_confidence_and_leaves_the_model_alone():
    model, loss = make(follower_lr=0.02)
    follower = loss.follower
    follower.make_optimizers()
    x = torch.cat([step.x for step in steps()])
    target = confidence(model, x)
    assert ((target > 0) & (target < 1)).all()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    errors = []
    for _ in range(60):
        follower.update(model, steps())
        errors.append((follower.weigh(x) - target).square().mean().item())
    assert errors[-1] < errors[0] / 5, errors
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in [*model.parameters(), *follower.parameters()])


def test_the_confidence_is_that_of_inference():
    """q of the class that branch 1 says, from the mean of both branches' one-vs-all logits."""
    model, _ = make()
    x = steps()[0].x
    confidences = confidence(model, x)
    first, second = model.eval()(x).branches
    odds = ((first.ova + second.ova) / 2).softmax(1)[:, 1]
    torch.testing.assert_close(confidences, odds.gather(1, first.logits.argmax(1, keepdim=True)).squeeze(1))


@pytest.mark.parametrize("norms", ["trained", "frozen"])
def test_statistics_of_the_follower_move_as_those_of_the_model_do(norms):
    model, loss = make()
    model.norms = norms
    loss.prepare(model, SETUP)
    follower = loss.double().follower
    follower.make_optimizers()
    before = follower.backbone.norm.running_mean.clone()
    follower.update(model, steps())
    assert torch.equal(follower.backbone.norm.running_mean, before) == (norms == "frozen")
    moved = follower.backbone.norm.running_mean.clone()
    loss(model, steps()[0])
    assert torch.equal(follower.backbone.norm.running_mean, moved)


def test_tasks_are_passed_together_where_asked():
    """Batch norm then sees the whole step, and the discrepancy is still that of each task."""
    (model, loss), (_, together) = make(), make("step")
    model.head.dropout.p = 0.0
    one = steps()[0]
    assert not torch.allclose(loss(model, one).tasks, together(model, one).tasks)
    model.eval()
    torch.testing.assert_close(loss(model, one).tasks, together(model, one).tasks)


def test_penalties_are_added():
    model, loss = make()
    loss.penalties = (lambda tasks, output, step: output.ova.sum() * 0 + tasks.sum(),)
    risk = loss(model, steps()[0])
    torch.testing.assert_close(risk.penalty, risk.tasks.sum())


def test_what_is_refused():
    model, loss = make()
    with pytest.raises(MedicError, match=naming("'ebil' features")):
        EbilHads([ce], change=lambda model, output, step: output)
    with pytest.raises(MedicError, match=naming("follower_lr 0")):
        EbilHads([ce], follower_lr=0.0)
    with pytest.raises(MedicError, match=naming("prepare")):
        EbilHads([ce])(model, steps()[0])
    with pytest.raises(MedicError, match=naming("Linear")):
        EbilHads([ce]).prepare(nn.Linear(1, 2), SETUP)
    with pytest.raises(MedicError, match=naming("images")):
        EbilHads([ce], passes="task").prepare(model, Setup(tasks=2, images=2))
    with pytest.raises(MedicError, match=naming("branches")):
        loss(Classifier(Backbone(Small(), 4, HALVES), 3).double(), steps()[0])
