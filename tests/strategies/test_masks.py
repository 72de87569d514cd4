"""Masks of gradients, by hand."""

import pytest
import torch

from medic.strategies import AndMask, SandMask


def combined(strategy, *gradients):
    return strategy._combined([None if one is None else torch.tensor(one, dtype=torch.float64) for one in gradients])


def test_a_task_that_does_not_reach_a_tensor_has_no_gradient_there():
    """The signs of 2, 2 and nothing agree to 2/3."""
    torch.testing.assert_close(combined(AndMask(tau=0.6), [2.0], None, [2.0]), torch.tensor([4 / 3]).double())
    assert combined(AndMask(tau=0.7), [2.0], None, [2.0]).tolist() == [0.0]
    assert combined(AndMask(), None, None) is None


def test_one_task_has_no_variance():
    assert combined(SandMask(), [3.0, 0.0]).tolist() == pytest.approx([6.0, 0.0])  # one of two moves, so twice as far


def test_the_variance_makes_the_mask_soft():
    gradients = torch.tensor([[1.0, 1.0], [3.0, 1.5]], dtype=torch.float64)
    expected = torch.tanh(torch.tensor([4 * 0.5 / 2, 4 * 0.5 / 0.125], dtype=torch.float64))
    torch.testing.assert_close(SandMask(tau=0.5, k=4.0).mask(gradients), expected)
