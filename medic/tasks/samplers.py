"""How the classes of a domain are dealt over tasks: at random, or so that confusable ones are apart."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.tasks.partition import chunks


class Sampler(Protocol):
    """Splits class labels over tasks; may learn from what training computes anyway."""

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

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None) -> None:
        """Take in the close-set logits (N, C) of one iteration, with classes and domains (N,)."""

    def state_dict(self) -> dict[str, Any]:
        """All that later splits depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""


class Random:
    """Option (i) of the paper: a uniform split."""

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

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None) -> None:
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

    def __init__(self, decay: float = 0.9, lag: int = 4) -> None:
        if lag < 1:
            raise MedicError(f"lag is {lag}: a split can use what earlier iterations observed, so 1 or more")
        self.decay = decay
        self.lag = lag
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

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None) -> None:
        """Average the softmax of each (domain, class) of the iteration into its row."""
        classes = logits.shape[1]
        domain = torch.zeros_like(y) if domain is None else domain
        self._seen |= set(domain.unique().tolist())
        self._grow(int(domain.max()) + 1, classes)
        row = (domain * classes + y).cpu()
        # A product with one-hot rows, not index_add, whose order of summation is undefined on a GPU.
        member = torch.nn.functional.one_hot(row, self._confusion.shape[0] * classes).double()
        sums = member.T @ logits.detach().cpu().double().softmax(dim=1)
        counts = member.sum(0)
        means = (sums / counts.clamp(min=1)[:, None]).view_as(self._confusion)
        averaged = self.decay * self._confusion + (1 - self.decay) * means
        self._confusion = torch.where((counts > 0).view(-1, classes, 1), averaged, self._confusion)
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


def group_confusion(confusion: Tensor | None, groups: Sequence[tuple[int, ...]]) -> Tensor:
    """The confusion (G, G) between groups of classes: sums over the blocks of (C, C), rows normalised.

    Without a confusion, and for classes it has not met, it is uniform.
    """
    classes = 1 + max(max(group) for group in groups)
    if confusion is None or len(confusion) < classes:
        confusion = torch.full((classes, classes), 1 / classes, dtype=torch.double)
    member = torch.zeros(len(groups), len(confusion), dtype=confusion.dtype)
    for index, group in enumerate(groups):
        member[index, list(group)] = 1
    blocks = member @ confusion @ member.T
    return blocks / blocks.sum(1, keepdim=True)


def chain(confusion: Tensor, generator: torch.Generator) -> list[int]:
    """Visit every group once: the first uniformly, each next one by the confusion row of the current one."""
    unused = list(range(len(confusion)))
    order = [unused.pop(int(torch.randint(len(unused), (), generator=generator)))]
    while unused:
        weights = confusion[order[-1], unused] + 1e-8
        order.append(unused.pop(int(torch.multinomial(weights, 1, generator=generator))))
    return order


SAMPLERS: dict[str, type[Random] | type[Adaptive]] = {"random": Random, "adaptive": Adaptive}
