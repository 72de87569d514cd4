"""Samplers: they deal the classes of a domain over tasks, at random or by how the model confuses them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medic.tasks.confusable import Confusable
from medic.tasks.lagged import Domains, Groups, Lagged, Sampler, Split, block_sums
from medic.tasks.partition import chunks
from medic.utils.parts import hyperparameter


@dataclass
class Random(Sampler):
    """Option (i) of the paper: a uniform split.

    Named `balanced` it is option (ii): a grid without splits is then drawn with equal counts per domain and class, as
    grids that split both always are. Named `informative` it is option (iv): a callback chooses among its tasks.
    """

    ahead = 8

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Shuffle the groups and cut them into chunks."""
        order: list[int] = torch.randperm(len(groups), generator=generator).tolist()
        return [list(chunk) for chunk in chunks(order, parts)]


@dataclass
class Adaptive(Lagged):
    """Option (vi) of the paper: classes that the model confuses go to different tasks of their domain.

    A chain visits every class once: the first at random, each next one with the probability p(j | i) that the current
    class i is taken for it, over the classes j not visited. Dealing the chain round-robin separates neighbours.

    p is a moving average per domain, row by row, of the softmax in training:
    `p ← decay · p + (1 - decay) · mean over the iteration's samples of class i`, starting uniform.
    """

    decay: float = hyperparameter(0.9, most=1, below=True)

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged confusion (C, C) averaged over `domains` (all met, if empty), or None before any.

        A domain that has not met a class is left out of its row; the row of a class that none has met is uniform.
        """
        past = self.past(domains, ahead)
        if past is None:
            return None
        uniform = self.initial(past.shape[1])
        met = (past != uniform).any(2, keepdim=True)
        return torch.where(met.any(0), (past * met).sum(0) / met.sum(0).clamp(min=1), uniform)

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Draw a chain over the groups and deal it."""
        return self.deal(chain(group_confusion(self.confusion(domains, ahead), groups), generator), parts)

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Deal a chain round-robin, so that neighbours are apart."""
        return [order[part::parts] for part in range(parts)]

    def initial(self, classes: int) -> float:
        """Start uniform."""
        return 1 / classes

    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Average the mean softmax of the met classes into their rows."""
        return torch.where(met, self.decay * matrices + (1 - self.decay) * mean, matrices)


class Chained(Adaptive):
    """Another reading of option (v) of the paper: the chain of `Adaptive`, cut into contiguous tasks."""

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Cut a chain into chunks, so that neighbours are together."""
        return [list(chunk) for chunk in chunks(order, parts)]


@dataclass
class Probe(Adaptive):
    """Option (vi) as the authors ran it: the confusion is measured on fresh images, augmented, before every split.

    p(j | i) is the mean over all images of class i, of any domain in the split; it is uniform for a class without any.
    It keeps no average and costs a forward pass per iteration, in evaluation mode. With lag 1 it is measured at the
    weights that the split is for, and nothing can be split ahead.
    """

    lag: int = hyperparameter(1, least=1)
    decay: float = 0.0
    probes = True

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Ignore the outputs of training."""

    def observe(self, summary: Tensor) -> None:
        """Keep the sums over fresh images, with their counts, in place of the earlier ones."""
        self._matrices = summary
        self._remember()

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the mean softmax (C, C) over the images of `domains` (all, if empty), or None before any."""
        past = self.past(domains, ahead)
        if past is None:
            return None
        sums, counts = past.sum(0).tensor_split([-1], dim=1)
        return torch.where(counts > 0, sums / counts.clamp(min=1), self.initial(len(sums)))


def group_confusion(confusion: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the confusion (G, G) between groups of classes: sums over the blocks of (C, C), rows normalised.

    It is uniform without a confusion and for classes it has not met.
    """
    blocks = block_sums(confusion, groups, unknown=1.0)
    return blocks / blocks.sum(1, keepdim=True)


def chain(confusion: Tensor, generator: torch.Generator) -> list[int]:
    """Visit every group once: the first uniformly, each next one by the confusion row of the current one."""
    count = len(confusion)
    weights = (confusion + 1e-8).numpy()
    # The shortest of exponential waiting times with these rates is a draw with these weights.
    waiting = torch.empty(count, count, dtype=torch.double).exponential_(generator=generator).numpy()
    order = [int(torch.randint(count, (), generator=generator))]
    used = np.zeros(count)
    for step in range(1, count):
        used[order[-1]] = np.inf
        order.append(int((waiting[step] / weights[order[-1]] + used).argmin()))
    return order


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "random": Random,
    "balanced": Random,
    "adaptive": Adaptive,
    "confusable": Confusable,
    "confusable-chain": Chained,
    "informative": Random,
    "probe": Probe,
}
"""Samplers by the name that `--sampling` knows them by."""
