"""The losses of EBiL-HaDS in closed form, and which domain is the hardest."""

import math

import pytest
import torch

from medic.systems.ebil_hads import discrepancy, evidential_loss, hardest


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_without_evidence_the_loss_is_that_of_a_guess(classes):
    loss = evidential_loss(torch.zeros(3, classes, dtype=torch.float64), torch.tensor([0, 1, 1]))
    assert loss.tolist() == pytest.approx([math.log(classes)] * 3, abs=1e-12)


def test_evidence():
    """exp(z) + 1 is 4 and 2; beyond 10 a logit counts as 10, and has no gradient."""
    logits = doubles([[math.log(3), 0.0], [math.log(3), 0.0], [40.0, 0.0]]).requires_grad_()
    loss = evidential_loss(logits, torch.tensor([0, 1, 1]))
    much = math.exp(10) + 1
    assert loss.tolist() == pytest.approx([math.log(6 / 4), math.log(6 / 2), math.log((much + 2) / 2)], abs=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient[0].tolist() == pytest.approx([3 / 6 - 3 / 4, 1 / 6])
    assert gradient[2, 0] == 0


def test_the_discrepancy_of_a_sample_with_itself_is_none():
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=torch.float64)
    assert discrepancy(x, x).item() == pytest.approx(0, abs=1e-12)
    assert discrepancy(x, x[torch.randperm(6)]).item() == pytest.approx(0, abs=1e-12)
    assert discrepancy(x, x + 1).item() > 0.1


def test_the_discrepancy_of_two_points():
    """Their squared distance, 25, is the mean one: MMD = 2 (5 - Σ exp(-1 / 2^s)); bandwidths are constants."""
    first, second = doubles([[3.0, 0.0]]).requires_grad_(), doubles([[0.0, 4.0]])
    mmd = discrepancy(first, second)
    scales = range(-2, 3)
    kernels = [math.exp(-(2.0**-scale)) for scale in scales]
    assert mmd.item() == pytest.approx(2 * (5 - sum(kernels)), abs=1e-12)
    assert mmd.item() == pytest.approx(6.1862764, abs=5e-8)
    (gradient,) = torch.autograd.grad(mmd, first)
    slope = 2 * sum(kernel / (25 * 2.0**scale) for kernel, scale in zip(kernels, scales, strict=True))
    assert gradient[0].tolist() == pytest.approx([slope * 2 * 3, slope * 2 * -4])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_discrepancy_of_equal_points_is_finite(value):
    x = torch.full((2, 3), value, requires_grad=True)
    mmd = discrepancy(x, torch.full((2, 3), value))
    (gradient,) = torch.autograd.grad(mmd, x)
    assert mmd.item() == 0
    assert gradient.abs().max() < 1e-3


def test_the_hardest_domain():
    weights = {0: 0.2, 1: 0.5, 2: 0.9}
    assert hardest(weights, {}, 2e-4) == 0
    assert hardest({4: 0.9, 7: 0.2}, {}, 2e-4) == 7
    # e^1.2 (0.1 + 0.1) = 0.664, e^1.5 · 0.1 = 0.448, e^1.9 · 0.1 = 0.669
    assert hardest(weights, {0: 3}, 0.1) == 1
    # e^1.2 (0.1 + 0.1 · 2/3) = 0.553, e^1.5 (0.1 + 0.1 / 3) = 0.598, e^1.9 · 0.1 = 0.669
    assert hardest(weights, {0: 2, 1: 1}, 0.1) == 0
