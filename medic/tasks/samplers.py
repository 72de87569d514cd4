"""How the classes of a domain are dealt over tasks: at random, or so that confusable ones are apart or together."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from medic.tasks.confusable import Confusable
from medic.tasks.lagged import Lagged, block_sums
from medic.tasks.partition import chunks


class Sampler(Protocol):
    """Splits class labels over tasks; may learn from what training computes anyway.

    What it learns from is a small tensor made of the outputs on the device (`summarise`), which may reach the host
    (`observe`) some iterations later.
    """

    ahead: int
    """How many iterations may be split before the first of them is observed, without changing any split."""
    probes: bool
    """Whether it is to be shown fresh images before every split, instead of what training computes."""

    def split(
        self,
        domains: Sequence[int],
        groups: Sequence[tuple[int, ...]],
        parts: int,
        generator: torch.Generator,
        ahead: int = 0,
    ) -> list[list[int]]:
        """Deal the `groups` of classes of a domain split over `parts` tasks: lists of positions in `groups`.

        `ahead` iterations were split and not observed yet.
        """

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """What there is to learn from the close-set logits (N, C) of samples of classes and domains (N,)."""

    def observe(self, summary: Tensor) -> None:
        """Take in the summary of one iteration."""

    def state_dict(self) -> dict[str, Any]:
        """All that later splits depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""


class Random:
    """Option (i) of the paper: a uniform split.

    By the name `balanced` it is option (ii): a grid that splits nothing is then drawn with equal numbers of every
    domain and class. Grids that split both are always. By the name `informative` it is option (iv): an advisor then
    chooses among the tasks of such splits.
    """

    ahead = 8
    probes = False

    def split(
        self,
        domains: Sequence[int],
        groups: Sequence[tuple[int, ...]],
        parts: int,
        generator: torch.Generator,
        ahead: int = 0,
    ) -> list[list[int]]:
        """Shuffle and cut into chunks."""
        order: list[int] = torch.randperm(len(groups), generator=generator).tolist()
        return [list(chunk) for chunk in chunks(order, parts)]

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Nothing."""

    def observe(self, summary: Tensor) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """No state."""


class Adaptive(Lagged):
    """Option (vi) of the paper: classes that the model confuses go to different tasks of their domain.

    A chain visits every class once: the first at random, each next one with the probability of being taken for it,
    p(j | i) over the classes j not visited. Dealing the chain round-robin puts neighbours into different tasks.

    p is a moving average per domain, row by row, of the softmax that training computes anyway:
    `p ← decay · p + (1 - decay) · mean over the iteration's samples of class i`, starting uniform.
    """

    def __init__(self, decay: float = 0.9, lag: int = 4) -> None:
        super().__init__(lag)
        self.decay = decay

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """The lagged confusion (C, C) averaged over `domains` (all met, if empty), or None while there is none."""
        past = self.past(domains, ahead)
        return None if past is None else past.mean(0)

    def split(
        self,
        domains: Sequence[int],
        groups: Sequence[tuple[int, ...]],
        parts: int,
        generator: torch.Generator,
        ahead: int = 0,
    ) -> list[list[int]]:
        """Draw a chain over the groups and deal it."""
        return self.deal(chain(group_confusion(self.confusion(domains, ahead), groups), generator), parts)

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Deal a chain round-robin, so that neighbours are apart."""
        return [order[part::parts] for part in range(parts)]

    def initial(self, classes: int) -> float:
        """Uniform."""
        return 1 / classes

    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Average the mean softmax of the classes that were met into their rows."""
        return torch.where(met, self.decay * matrices + (1 - self.decay) * mean, matrices)


class Chained(Adaptive):
    """Option (v) of the paper, read otherwise than `Confusable`: the chain of `Adaptive`, cut into contiguous tasks."""

    def deal(self, order: list[int], parts: int) -> list[list[int]]:
        """Cut a chain into chunks, so that neighbours are together."""
        return [list(chunk) for chunk in chunks(order, parts)]


class Probe(Adaptive):
    """Option (vi) as the authors ran it: the confusion is that of fresh images, met right before every split.

    It remembers nothing, costs a forward pass per iteration, and nothing can be split ahead.
    """

    probes = True

    def __init__(self) -> None:
        super().__init__(decay=0.0, lag=1)

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Nothing of what training computes."""

    def observe(self, summary: Tensor) -> None:
        """Take the mean softmax of the fresh images; classes without any are uniform."""
        self._matrices = torch.empty(0, 0, 0)
        super().observe(summary)


def group_confusion(confusion: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """The confusion (G, G) between groups of classes: sums over the blocks of (C, C), rows normalised.

    Without a confusion, and for classes it has not met, it is uniform.
    """
    blocks = block_sums(confusion, groups, unknown=1.0)
    return blocks / blocks.sum(1, keepdim=True)


def chain(confusion: Tensor, generator: torch.Generator) -> list[int]:
    """Visit every group once: the first uniformly, each next one by the confusion row of the current one."""
    count = len(confusion)
    weights = (confusion + 1e-8).numpy()
    # Of waiting times with these rates the shortest is a draw with these weights; all are drawn at once.
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
