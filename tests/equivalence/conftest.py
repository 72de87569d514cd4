"""Fixtures of tests against closed forms."""

import pytest
import torch


@pytest.fixture
def double():
    """Compute in float64, from the same seed in every test."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
