"""How the classes of a domain are dealt over tasks: at random, or so that confusable ones are apart."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from medic.errors import MedicError
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
    """Option (i) of the paper: a uniform split."""

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


class Adaptive:
    """Option (vi) of the paper: classes that the model confuses go to different tasks of their domain.

    A chain visits every class once: the first at random, each next one with the probability of being taken for it,
    p(j | i) over the classes j not visited. Dealing the chain round-robin puts neighbours into different tasks.

    p is a moving average per domain, row by row, of the softmax that training computes anyway:
    `p ← decay · p + (1 - decay) · mean over the iteration's samples of class i`, starting uniform. A split uses
    p as it was `lag` iterations earlier, the same on every device.
    """

    probes = False

    def __init__(self, decay: float = 0.9, lag: int = 4) -> None:
        if lag < 1:
            raise MedicError(f"lag is {lag}: a split can use what earlier iterations observed, so 1 or more")
        self.decay = decay
        self.lag = lag
        self.ahead = lag - 1
        self._confusion = torch.empty(0, 0, 0)  # (domains, classes, classes), grown to what is observed
        self._pending: deque[Tensor] = deque()
        self._seen: set[int] = set()

    def confusion(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """The lagged confusion (C, C) averaged over `domains` (all seen, if empty), or None while there is none.

        It is the same whenever an iteration is split, up to `lag - 1` iterations before its turn.
        """
        position = len(self._pending) - self.lag + ahead
        if position < 0:
            return None
        past = self._pending[position]
        seen = [domain for domain in domains or sorted(self._seen) if domain < len(past)]
        return past[seen].mean(0) if seen else None

    def split(
        self,
        domains: Sequence[int],
        groups: Sequence[tuple[int, ...]],
        parts: int,
        generator: torch.Generator,
        ahead: int = 0,
    ) -> list[list[int]]:
        """Draw a chain over the groups and deal it round-robin."""
        order = chain(group_confusion(self.confusion(domains, ahead), groups), generator)
        return [order[part::parts] for part in range(parts)]

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """The softmax summed over the samples of every (domain, class)."""
        return softmax_sums(logits, y, domain, domains)

    def observe(self, summary: Tensor) -> None:
        """Average the mean softmax of each (domain, class) of the iteration into its row."""
        sums, counts = summary[..., :-1], summary[..., -1:]
        self._seen |= set(counts.sum((1, 2)).nonzero().squeeze(1).tolist())
        self._grow(*sums.shape[:2])
        old = self._confusion[: len(sums)]
        averaged = self.decay * old + (1 - self.decay) * sums / counts.clamp(min=1)
        updated = torch.where(counts > 0, averaged, old)
        self._confusion = torch.cat([updated, self._confusion[len(sums) :]])
        self._pending.append(self._confusion)
        if len(self._pending) > self.lag:
            self._pending.popleft()

    def _grow(self, domains: int, classes: int) -> None:
        if self._confusion.shape[1] != classes:
            self._confusion = torch.empty(0, classes, classes, dtype=torch.double)
        missing = domains - len(self._confusion)
        if missing > 0:
            uniform = torch.full((missing, classes, classes), 1 / classes, dtype=torch.double)
            self._confusion = torch.cat([self._confusion, uniform])

    def state_dict(self) -> dict[str, Any]:
        """The running confusion, and the past ones that splits still have to use."""
        return {"confusion": self._confusion, "pending": list(self._pending), "seen": sorted(self._seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""
        self._confusion = state["confusion"]
        self._pending = deque(state["pending"])
        self._seen = set(state["seen"])


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
        self._confusion = torch.empty(0, 0, 0)
        super().observe(summary)


def softmax_sums(logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor:
    """Sums over the samples of every (domain, class) of their softmax, and their number: (domains, C, C + 1).

    The close-set logits are (N, C), classes and domains (N,). It stays on their device and asks it for nothing.
    """
    classes = logits.shape[1]
    row = y if domain is None else domain * classes + y
    # A product with one-hot rows, not index_add, whose order of summation is undefined on a GPU.
    member = (row[:, None] == torch.arange(domains * classes, device=row.device)).double()
    probability = logits.detach().double().softmax(dim=1)
    sums = member.T @ torch.cat([probability, probability.new_ones(len(row), 1)], dim=1)
    return sums.view(domains, classes, classes + 1)


def group_confusion(confusion: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """The confusion (G, G) between groups of classes: sums over the blocks of (C, C), rows normalised.

    Without a confusion, and for classes it has not met, it is uniform.
    """
    classes = 1 + max(max(group) for group in groups)
    if confusion is None or len(confusion) < classes:
        confusion = torch.full((classes, classes), 1 / classes, dtype=torch.double)
    if all(len(group) == 1 for group in groups):  # nothing to sum, however many classes there are
        chosen = torch.tensor([group[0] for group in groups])
        blocks = confusion[chosen][:, chosen]
    else:
        member = torch.zeros(len(groups), len(confusion), dtype=confusion.dtype)
        for index, group in enumerate(groups):
            member[index, list(group)] = 1
        blocks = member @ confusion @ member.T
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


SAMPLERS: dict[str, type[Random] | type[Adaptive] | type[Probe]] = {
    "random": Random,
    "adaptive": Adaptive,
    "probe": Probe,
}
