"""Tasks that are worth learning from: option (iv) of the paper, after Luna Gutierrez and Leonetti (2020).

A candidate is known by what a model that took a step on it says of some samples, probabilities (N, C).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

FLOOR = 1e-4
"""The least probability, before all are divided by their sum."""


def floored(probability: Tensor) -> Tensor:
    """Probabilities (N, C) without zeros, whose logarithms are finite."""
    raised = probability.clamp(min=FLOOR)
    return raised / raised.sum(-1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> float:
    """The mean over samples of KL(p ‖ q), from probabilities (N, C) each."""
    return float((p * (p / q).log()).sum(1).mean())


def entropies(p: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean entropy of each of some batches (number of batches,), whose samples p (N, C) has in a row."""
    entropy = -(p * p.log()).sum(1)
    return torch.stack([batch.mean() for batch in entropy.split(list(sizes))])


def is_relevant(before: Tensor, after: Tensor, sizes: Sequence[int]) -> bool:
    """Whether a step leaves the model at least as sure as it was of one of the batches."""
    return bool((entropies(before, sizes) >= entropies(after, sizes)).any())


def choose(before: Tensor, candidates: Iterable[Tensor], sizes: Sequence[int], count: int, delta: float) -> list[int]:
    """Positions of `count` candidates, fewer if there are fewer.

    `before` (N, C) is what the model says of the samples of some batches of `sizes`, and each candidate what it says
    after a step on it. A candidate that is relevant and differs by a divergence of `delta` or more from every accepted
    one is accepted, in the order in which they come, and no more are looked at when there are enough. What is missing
    is filled up with the first of those that were not accepted.
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
