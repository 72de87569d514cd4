"""Gradient checkpointing: blocks store only their inputs and recompute activations in the backward pass."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from medic.errors import MedicError
from medic.models.blocks import find_blocks

_RANDOM = ("p", "drop_prob", "dropout")
"""Attributes that hold the drop probability of layers such as dropout."""


def recompute_blocks(backbone: nn.Module) -> None:
    """Recompute the activations of backbone blocks in the backward pass instead of storing them.

    The gradients stay the same. Batch norm must not update its statistics, because the second forward pass would update
    them again.
    """
    blocks = find_blocks(backbone)
    if not blocks:
        raise MedicError("--recompute requires a backbone with a sequence of blocks: omit --recompute")
    known = hasattr(backbone, "pretrained_cfg") or type(backbone).__module__.startswith("medic.")
    for block in blocks:
        # A CUDA graph cannot capture saving the generator state, so it is saved only for blocks with random layers.
        # Custom networks may call random functions instead.
        random = not known or any(bool(getattr(part, name, 0)) for part in block.modules() for name in _RANDOM)
        block.forward = partial(_recomputed, block.forward, random)


def _recomputed(forward: Callable[..., Any], random: bool, *inputs: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=random, **options)
