"""A sampler that puts confusable classes into the same task, by potentials of class pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medic.tasks.lagged import Domains, Groups, Lagged, Split, block_sums
from medic.tasks.partition import chunks
from medic.utils.parts import hyperparameter


@dataclass
class Confusable(Lagged):
    """Option (v) of the paper, after Liu et al. (2020): classes that the model confuses go to the same task.

    Every domain has a symmetric potential K of class pairs, at first 1. For classes i and j that an iteration has both
    of the domain, `K_ij ← K_ij^forgetting · exp(strength · u_ij)`, where u_ij is the mean probability that one of them
    is taken for the other, `(p(j | i) + p(i | j)) / 2`. An order of all classes is drawn by K and cut into tasks.

    K is kept as its logarithm, in which the update is linear, so that log K can be averaged over groups of classes.
    The diagonal is not used.
    """

    forgetting: float = hyperparameter(0.5, most=1)
    strength: float = hyperparameter(1.0)

    def potentials(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged log K (C, C) of the product over `domains` (all met, if empty), or None before any."""
        past = self.past(domains, ahead)
        return None if past is None else past.sum(0)

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Draw an order of the groups and cut it into chunks."""
        order = potential_order(group_potentials(self.potentials(domains, ahead), groups), generator)
        return [list(chunk) for chunk in chunks(order, parts)]

    def initial(self, classes: int) -> float:
        """Start with K = 1."""
        return 0.0

    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Update the pairs of classes that were both met."""
        taken = (mean + mean.mT) / 2
        return torch.where(met & met.mT, self.forgetting * matrices + self.strength * taken, matrices)


def group_potentials(potentials: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """Return log K (G, G) between groups of classes: the mean over the blocks of (C, C), or 0 without any."""
    sizes = torch.tensor([len(group) for group in groups])
    return block_sums(potentials, groups, unknown=0.0) / (sizes[:, None] * sizes)


def potential_order(potentials: Tensor, generator: torch.Generator) -> list[int]:
    """Draw an order of all groups by log K (G, G) that keeps groups of high potential near each other.

    The first two are the pair i, j with probability K_ij / Σ K; each further group has a probability proportional to
    the product of its K with all before it, or uniform where these are all 0.
    """
    count = len(potentials)
    weights = potentials.clone().fill_diagonal_(-torch.inf)
    # The largest of log weights plus Gumbel noise is a draw with these weights.
    noise = -torch.empty(count, count, dtype=torch.double).exponential_(generator=generator).log().numpy()
    scores = weights.logsumexp(1).numpy()  # row sums weigh the first of the pair
    rows = weights.numpy()
    unused = np.ones(count, dtype=bool)
    order: list[int] = []
    for draw in noise:
        possible = unused & (scores > -np.inf)
        noisy = scores + draw if possible.any() else draw
        chosen = int(np.where(unused, noisy, -np.inf).argmax())
        scores = scores + rows[chosen] if order else rows[chosen]
        unused[chosen] = False
        order.append(chosen)
    return order
