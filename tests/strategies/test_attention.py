"""Attention in strategies that differentiate twice."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from medic.strategies.second_order import CheapSecondDerivatives


def test_attention_is_differentiated_twice():
    """The fused kernel, which torch takes by itself, cannot be."""
    values = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    with CheapSecondDerivatives():
        assert torch.autograd.gradgradcheck(lambda q: scaled_dot_product_attention(q, q.flip(2), q), values)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.gradgradcheck(lambda q: scaled_dot_product_attention(q, q.flip(2), q), values)
