"""Gradient checkpointing: blocks that keep their inputs alone, and compute their activations again when needed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from medic.errors import MedicError

_RANDOM = ("p", "drop_prob", "dropout")
"""Attributes of layers that drop some of their inputs, which hold the probability."""


def recompute_blocks(backbone: nn.Module) -> None:
    """Let the blocks of a backbone forget their activations in training. The gradients stay the same.

    Batch norm must not estimate statistics, because the second forward pass would move them again.
    """
    blocks = _find_blocks(backbone)
    if not blocks:
        raise MedicError("recompute: this backbone has no blocks in a sequence: leave out --recompute")
    for block in blocks:
        # A CUDA graph cannot hold the state of the random generator, so it is only kept where it is needed.
        random = any(bool(getattr(part, name, 0)) for part in block.modules() for name in _RANDOM)
        block.forward = partial(_recomputed, block.forward, random)


def _recomputed(forward: Callable[..., Any], random: bool, *inputs: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=random, **options)


def _find_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Return the innermost members of sequences that have several layers: residual or transformer blocks."""
    sequences = [part for part in backbone.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    members = [member for sequence in sequences for member in sequence if _count_layers(member) > 1]
    outer = {member for member in members if any(part in members for part in member.modules() if part is not member)}
    return [member for member in members if member not in outer]


def _count_layers(module: nn.Module) -> int:
    """Return the number of layers with weights of their own."""
    return sum(1 for part in module.modules() if any(True for _ in part.parameters(recurse=False)))
