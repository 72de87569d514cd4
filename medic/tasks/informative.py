"""Informative tasks: option (iv) of the paper, after Luna Gutierrez and Leonetti (2020).

A candidate is described by the probabilities (N, C) of some samples after a step on it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

FLOOR = 1e-4
"""The least probability, before normalisation."""


def floored(probability: Tensor) -> Tensor:
    """Return probabilities (N, C) without zeros, so that logarithms are finite."""
    raised = probability.clamp(min=FLOOR)
    return raised / raised.sum(-1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> float:
    """Return the mean over samples of KL(p ‖ q), from probabilities (N, C)."""
    return float((p * (p / q).log()).sum(1).mean())


def entropies(p: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean entropy of each batch (batches,), from the probabilities p (N, C) of consecutive batches."""
    entropy = -(p * p.log()).sum(1)
    return torch.stack([batch.mean() for batch in entropy.split(list(sizes))])


def is_relevant(before: Tensor, after: Tensor, sizes: Sequence[int]) -> bool:
    """Whether a step leaves the model at least as certain about one of the batches."""
    return bool((entropies(before, sizes) >= entropies(after, sizes)).any())


def choose(before: Tensor, candidates: Iterable[Tensor], sizes: Sequence[int], count: int, delta: float) -> list[int]:
    """Choose `count` candidates, or all if there are fewer; return their positions.

    `before` (N, C) are the model's probabilities for the samples of batches of `sizes`, and each candidate those after
    a step on it. In order, a candidate is accepted if it is relevant and differs from every accepted one by a
    divergence of at least `delta`. If too few are accepted, the first rejected ones fill up.
    """
    before = floored(before)
    accepted: dict[int, Tensor] = {}
    others: list[int] = []
    for position, after in enumerate(map(floored, candidates)):
        differs = all(divergence(kept, after) >= delta for kept in accepted.values())
        if differs and is_relevant(before, after, sizes):
            accepted[position] = after
        else:
            others.append(position)
        if len(accepted) == count:
            break
    return [*accepted, *others[: count - len(accepted)]]
