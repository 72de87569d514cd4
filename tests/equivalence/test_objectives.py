"""Closed forms of the losses, in float64."""

import math

import pytest
import torch

from medic.errors import MedicError
from medic.models import HEADS
from medic.objectives import Ova, ce, objective, ova
from medic.systems.arpl import Arpl
from medic.systems.onering import OneRing
from medic.tasks import Step
from medic.utils.outputs import Output


def output_of(log_odds: list[float]) -> Output:
    """One sample whose one-vs-all log-odds are given; how they are shared between the channels must not matter."""
    odds = torch.tensor([log_odds], dtype=torch.float64)
    base = torch.tensor([[0.3, -1.7, 2.2][: odds.shape[1]]], dtype=torch.float64)
    return Output(torch.zeros_like(odds), torch.stack([base, base + odds], dim=1).requires_grad_())


FIRST = torch.tensor([0])


def test_ova_of_log_odds():
    """d = (2, -1, 0.5), y = 0: softplus(-2) = 0.126928, softplus(0.5) = 0.974077."""
    output = output_of([2.0, -1.0, 0.5])
    assert ova(output, FIRST).item() == pytest.approx(0.126928 + 0.974077, abs=1e-6)
    assert ova(output, FIRST).item() == pytest.approx(1.101005, abs=1e-6)
    assert Ova(0.5)(output, FIRST).item() == pytest.approx(0.550502, abs=1e-6)


def test_ova_gradient_reaches_the_own_and_the_hardest_classifier_only():
    output = output_of([2.0, -1.0, 0.5])
    ova(output, FIRST).sum().backward()
    assert output.ova.grad[0, :, 1].tolist() == [0.0, 0.0]
    assert (output.ova.grad[0, :, [0, 2]] != 0).all()


def test_ova_of_zero_logits():
    """2 ln 2 in the paper's form, ln 2 in the authors'."""
    output = Output(torch.zeros(1, 3), torch.zeros(1, 2, 3, dtype=torch.float64))
    assert ova(output, FIRST).item() == pytest.approx(2 * math.log(2), rel=1e-12)
    assert Ova(0.5)(output, FIRST).item() == pytest.approx(math.log(2), rel=1e-12)


def test_ova_of_probabilities():
    """Positive probabilities (0.75, 0.5, 0.25), y = 0: 0.287682 + 0.693147."""
    output = output_of([math.log(3), 0.0, -math.log(3)])
    assert ova(output, FIRST).item() == pytest.approx(0.980829, abs=1e-6)
    assert Ova(0.5)(output, FIRST).item() == pytest.approx(0.4904146, abs=1e-6)


def test_ova_with_the_authors_floor():
    """-log(q + 1e-8): 0.5 · (0.287682 + 0.693147) hardly changes, and 1000 becomes log 1e8 without a gradient."""
    loss = Ova(0.5, 1e-8)
    usual = loss(output_of([math.log(3), 0.0, -math.log(3)]), FIRST).item()
    assert usual == pytest.approx(-0.5 * (math.log(0.75 + 1e-8) + math.log(0.5 + 1e-8)), rel=1e-12)
    wrong = output_of([-1000.0, 1000.0, 0.0])
    value = loss(wrong, FIRST)
    value.sum().backward()
    assert value.item() == pytest.approx(math.log(1e8), rel=1e-6)
    assert wrong.ova.grad.abs().max() < 1e-6


def test_ova_neither_overflows_nor_loses_its_gradient():
    """The form with log(q + 1e-8) is capped at 18.42 and flat there."""
    output = output_of([-1000.0, 1000.0, 0.0])
    loss = ova(output, FIRST)
    loss.sum().backward()
    assert loss.item() == pytest.approx(2000.0)
    assert output.ova.grad[0, 1, 0].item() == pytest.approx(-1.0)
    assert output.ova.grad[0, 1, 1].item() == pytest.approx(1.0)


def test_erm_averages_over_samples_not_over_domains():
    """Domains with losses [1, 1] and [4] in one task: 2.0, not 2.5."""
    measured = objective(lambda output, y: output.logits[:, 0])
    losses = torch.tensor([[1.0], [1.0], [4.0]])
    step = Step(losses, torch.zeros(3, dtype=torch.long), (3,), {"domain": torch.tensor([0, 0, 1])})
    assert measured(torch.nn.Identity(), step).total.item() == 2.0


def test_penalties_are_added_to_the_mean_risk():
    """The variance of task risks (1, 2, 3) with weight 10: mean 2 + 10 · 2/3 = 8.666667 per task (V-REx)."""

    def variance(risks, output, step):
        return 10 * risks.var(correction=0)

    losses = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    step = Step(losses, torch.zeros(3, dtype=torch.long), (1, 1, 1))
    risk = objective(lambda output, y: output.logits[:, 0], penalties=[variance])(torch.nn.Identity(), step)
    (risk.total / 3).backward()
    assert risk.total.item() / 3 == pytest.approx(8.666667, abs=1e-5)
    assert losses.grad[:, 0].tolist() == pytest.approx([-6.333333, 0.333333, 7.0], abs=1e-5)


def test_cross_entropy():
    logits = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    expected = math.log(sum(math.exp(v) for v in (1.0, 2.0, 0.5))) - 2.0
    assert ce(Output(logits), torch.tensor([1])).item() == pytest.approx(expected, rel=1e-12)


def test_arpl():
    """f = (1, 0), reciprocal points (0, 0) and (1, 1), radius 0, class 0."""
    head = HEADS["reciprocal"](2, 2).double()
    with torch.no_grad():
        head.points.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    output = head(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert output.distance.tolist() == [pytest.approx([0.5, 0.5])]
    assert output.logits.tolist() == [pytest.approx([0.5, -0.5])]
    y = torch.tensor([0])
    assert Arpl(weight=0.0)(output, y).item() == pytest.approx(0.313262, abs=5e-7)
    assert Arpl(weight=1.0)(output, y).item() - Arpl(weight=0.0)(output, y).item() == pytest.approx(1.5)
    assert Arpl()(output, y).item() == pytest.approx(0.463262, abs=5e-7)


def test_arpl_trains_points_and_radius():
    torch.manual_seed(0)
    head = HEADS["reciprocal"](3, 4)
    Arpl()(head(torch.randn(5, 3)), torch.tensor([0, 1, 2, 3, 0])).sum().backward()
    assert head.points.grad.abs().sum() > 0
    assert head.radius.grad.item() == pytest.approx(-0.5)  # every sample is outside, and pulls the radius


def test_onering():
    zero = Output(torch.zeros(1, 3, dtype=torch.float64), unknown=torch.zeros(1, dtype=torch.float64))
    assert OneRing()(zero, torch.tensor([0])).item() == pytest.approx(math.log(4) + math.log(3))
    output = Output(torch.tensor([[5.0, 0.0, 0.0]]).double(), unknown=torch.tensor([2.0]).double())
    y = torch.tensor([0])
    assert OneRing(0.0)(output, y).item() == pytest.approx(0.061342, abs=5e-7)
    assert OneRing(1.0)(output, y).item() - OneRing(0.0)(output, y).item() == pytest.approx(0.239545, abs=5e-7)


def test_the_rows_of_the_ring_are_shortened_between_iterations():
    head = HEADS["ring"](4, 3)
    with torch.no_grad():
        head.ring_head.weight.mul_(7)
    before = head.ring_head.weight.clone()
    outputs = [head(torch.ones(2, 4)) for _ in range(2)]  # as a forward pass by task has them
    assert torch.equal(head.ring_head.weight, before)
    sum(OneRing()(output, torch.tensor([0, 2])).sum() for output in outputs).backward()
    assert head.ring_head.weight.grad.abs().sum() > 0
    head.renew()
    assert torch.allclose(head.ring_head.weight, before / before.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("loss", [Arpl(), OneRing()])
def test_losses_name_the_head_they_need(loss):
    with pytest.raises(MedicError, match="--head"):
        loss(Output(torch.zeros(1, 2)), torch.tensor([0]))
