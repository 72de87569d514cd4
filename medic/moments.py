"""What an optimizer remembers: moments and counters, copied, taken over and dropped."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A copy of the moments and counters of an optimizer: not of its settings, which depend on the device."""
    return {"state": copy.deepcopy(optimizer.state_dict()["state"])}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over what `optimizer_state` gave, from whatever device it was."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Drop the moments and counters of an optimizer, in place: a CUDA graph may hold them."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()
