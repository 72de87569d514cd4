"""Samplers, which distribute the classes of a domain over tasks, at random or based on the model's confusion."""

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
    """Option (i) of the paper: a uniformly random split.

    The name `balanced` selects option (ii). A grid without splits then draws equal counts per domain and class, as
    grids that split both axes always do. The name `informative` selects option (iv), in which a callback chooses among
    random tasks.
    """

    ahead = 8

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Shuffle the class groups and cut them into tasks."""
        order: list[int] = torch.randperm(len(groups), generator=generator).tolist()
        return [list(chunk) for chunk in chunks(order, parts)]


@dataclass
class Adaptive(Lagged):
    """Option (vi) of the paper: classes that the model confuses go to different tasks of their domain.

    A chain visits every class once. It starts at a random class. Each subsequent class j is drawn from the unvisited
    classes with probability p(j | i), the probability that the model mistakes the current class i for j. Distributing
    the chain round-robin separates neighbours.

    p is a moving average of the training softmax, starting uniform. Each domain has its own p, and each class i its own
    row: `p ← decay · p + (1 - decay) · mean over the iteration's samples of class i`.
    """

    decay: float = hyperparameter(0.9, most=1, below=True)

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged confusion, of shape (C, C), averaged over `domains`, or None before any observation.

        An empty list stands for all observed domains. Each row averages over the domains in which the class was
        observed. The row of a class that was never observed is uniform.
        """
        past = self.past(domains, ahead)
        if past is None:
            return None
        uniform = self.initial(past.shape[1])
        met = (past != uniform).any(2, keepdim=True)
        return torch.where(met.any(0), (past * met).sum(0) / met.sum(0).clamp(min=1), uniform)

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Draw a chain of class groups and distribute it over the tasks."""
        return self.deal(chain(group_confusion(self.confusion(domains, ahead), groups), generator), parts)

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Distribute a chain round-robin, so that neighbours go to different tasks."""
        return [order[part::parts] for part in range(parts)]

    def initial(self, classes: int) -> float:
        """Return the value of a uniform row."""
        return 1 / classes

    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Update the moving average in the rows of observed classes."""
        return torch.where(met, self.decay * matrices + (1 - self.decay) * mean, matrices)


class Chained(Adaptive):
    """Another interpretation of the paper's option (v): the chain of `Adaptive`, cut into contiguous tasks."""

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Cut a chain into chunks, so that neighbours go to the same task."""
        return [list(chunk) for chunk in chunks(order, parts)]


@dataclass
class Probe(Adaptive):
    """Option (vi) as in the authors' code: measure the confusion on fresh augmented images before every split.

    p(j | i) is the mean softmax over all images of class i in the domains of the split, or uniform without such images.
    There is no moving average. The measurement costs one forward pass in evaluation mode per iteration. With a lag of
    1, it uses the current weights, and iterations cannot be split ahead.
    """

    lag: int = hyperparameter(1, least=1)
    decay: float = 0.0
    probes = True

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Ignore the training outputs."""

    def observe(self, summary: Tensor) -> None:
        """Replace the stored sums and counts with those of the latest fresh images."""
        self._matrices = summary
        self._remember()

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the mean softmax per class, of shape (C, C), over images from `domains`, or None without images."""
        past = self.past(domains, ahead)
        if past is None:
            return None
        sums, counts = past.sum(0).tensor_split([-1], dim=1)
        return torch.where(counts > 0, sums / counts.clamp(min=1), self.initial(len(sums)))


def group_confusion(confusion: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the confusion between class groups, of shape (G, G), from a confusion of shape (C, C).

    Sum the confusion over each block, then normalise the rows. If there is no confusion matrix, or if it has too few
    classes, the result is uniform.
    """
    blocks = block_sums(confusion, groups, unknown=1.0)
    return blocks / blocks.sum(1, keepdim=True)


def chain(confusion: Tensor, generator: torch.Generator) -> list[int]:
    """Visit every group once, starting at random. The current row of the confusion weights the next group."""
    count = len(confusion)
    weights = (confusion + 1e-8).numpy()
    # The index of the shortest exponential waiting time with these rates is a sample with these weights.
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
"""Samplers by their `--sampling` name."""
