"""Set learning rates, and save, load and reset the state of optimizers."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """Set the learning rate of each group to `factor` times its base rate, without synchronising with the GPU."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a copy of an optimizer's moments and counters, without its device-dependent settings."""
    return {"state": copy.deepcopy(optimizer.state_dict()["state"])}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state from `optimizer_state`. The state may be on any device."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})


def reset_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Zero an optimizer's moments and counters in place, because a CUDA graph may refer to them."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()
