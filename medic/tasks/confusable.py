"""A sampler that puts confusable classes into the same task, based on potentials of class pairs."""

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

    Each domain has a symmetric matrix K with one potential per class pair, initially 1. If an iteration contains both
    classes i and j of a domain, it updates `K_ij ← K_ij^forgetting · exp(strength · u_ij)`. Here
    `u_ij = (p(j | i) + p(i | j)) / 2` is the mean probability of confusing the two classes. The sampler draws an order
    of all classes from K and cuts it into tasks.

    The implementation stores log K, because the update of log K is linear and log K can be averaged over class groups.
    The diagonal is not used.
    """

    forgetting: float = hyperparameter(0.5, most=1)
    strength: float = hyperparameter(1.0)

    def potentials(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged log K, of shape (C, C), summed over `domains`, or None before any observation.

        An empty list stands for all observed domains.
        """
        past = self.past(domains, ahead)
        return None if past is None else past.sum(0)

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Draw an order of the class groups and cut it into tasks."""
        order = potential_order(group_potentials(self.potentials(domains, ahead), groups), generator)
        return [list(chunk) for chunk in chunks(order, parts)]

    def initial(self, classes: int) -> float:
        """Return 0, because K starts at 1 and is stored as log K."""
        return 0.0

    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Update the potentials of pairs in which both classes occurred."""
        taken = (mean + mean.mT) / 2
        return torch.where(met & met.mT, self.forgetting * matrices + self.strength * taken, matrices)


def group_potentials(potentials: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """Average log K over class groups: from shape (C, C) to (G, G). Returns zeros if `potentials` is None."""
    sizes = torch.tensor([len(group) for group in groups])
    return block_sums(potentials, groups, unknown=0.0) / (sizes[:, None] * sizes)


def potential_order(potentials: Tensor, generator: torch.Generator) -> list[int]:
    """Draw an order of all groups that places groups with high potential close together.

    `potentials` is log K, of shape (G, G). The first two groups are the pair i, j with probability K_ij / Σ K. The
    probability of each subsequent group is proportional to the product of its potentials with all previous groups, or
    uniform if all products are 0.
    """
    count = len(potentials)
    weights = potentials.clone().fill_diagonal_(-torch.inf)
    # The argmax of log weights plus Gumbel noise is a sample with these weights.
    noise = -torch.empty(count, count, dtype=torch.double).exponential_(generator=generator).log().numpy()
    scores = weights.logsumexp(1).numpy()  # row sums are the weights of the first group
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
