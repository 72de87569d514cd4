"""The bases of samplers: those that learn have a confusion matrix per domain, used some iterations late."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from medic.utils.parts import check_hyperparameters, hyperparameter

Domains = Sequence[int]
Groups = Sequence[tuple[int, ...]]
"""The units of a class split: single classes, or contiguous groups of them."""
Split = list[list[int]]
"""For every task, positions in the groups."""


class Sampler:
    """Splits class labels over tasks; may learn from the outputs of training. By default it learns nothing.

    `summarise` reduces the outputs to a small tensor on the device, which reaches the host (`observe`) some iterations
    later.
    """

    ahead: int
    """The number of iterations that may be split before the first of them is observed, with the same result."""
    probes: bool = False
    """Whether it observes fresh images after every iteration instead of the outputs of training."""

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Deal the `groups` of classes of a domain split over `parts` tasks: lists of positions in `groups`.

        `ahead` iterations were split but not observed yet.
        """
        raise NotImplementedError

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Summarise the closed-set logits (N, C) of samples of classes and domains (N,), on their device."""
        return None

    def observe(self, summary: Tensor) -> None:
        """Learn from the summary of one iteration."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later splits depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""


@dataclass
class Lagged(Sampler, ABC):
    """A sampler with a matrix (C, C) per domain of how the model confuses its classes in training.

    A split uses the matrices of `lag` iterations earlier. It is therefore the same on every device, and whenever it is
    drawn, up to `lag - 1` iterations ahead.
    """

    _: KW_ONLY
    lag: int = hyperparameter(4, least=1)

    def __post_init__(self) -> None:
        check_hyperparameters(self)
        self.ahead = self.lag - 1
        self._matrices = torch.empty(0, 0, 0)  # (domains, classes, classes), grown to what is observed
        self._pending: deque[Tensor] = deque()

    @abstractmethod
    def initial(self, classes: int) -> float:
        """Return the initial value of every entry of a matrix."""

    @abstractmethod
    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Return the matrices (D, C, C) after an iteration.

        Rows of `mean` (D, C, C) are the mean softmax of a (domain, class); `met` (D, C, 1) marks those with samples.
        """

    @property
    def observed(self) -> bool:
        """Whether it has observed an iteration."""
        return len(self._matrices) > 0

    def past(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged matrices of `domains` (all met, if empty), (number, C, C), or None while there are none."""
        position = len(self._pending) - self.lag + ahead
        if position < 0:
            return None
        past = self._pending[position]
        known = [domain for domain in domains or self._met(past) if domain < len(past)]
        return past[known] if known else None

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Sum the softmax over the samples of every (domain, class)."""
        return softmax_sums(logits, y, domain, domains)

    def observe(self, summary: Tensor) -> None:
        """Update the matrices by the mean softmax of each (domain, class) of the iteration."""
        sums, counts = summary[..., :-1], summary[..., -1:]
        self._grow(*sums.shape[:2])
        updated = self.updated(self._matrices[: len(sums)], sums / counts.clamp(min=1), counts > 0)
        self._matrices = torch.cat([updated, self._matrices[len(sums) :]])
        self._remember()

    def _remember(self) -> None:
        """Keep the matrices of this iteration until splits no longer use them."""
        self._pending.append(self._matrices)
        if len(self._pending) > self.lag:
            self._pending.popleft()

    def _met(self, matrices: Tensor) -> list[int]:
        """Return the domains whose matrices were ever updated; a running list of them would not be lagged."""
        changed = (matrices != self.initial(matrices.shape[1])).flatten(1).any(1)
        return [domain for domain, met in enumerate(changed.tolist()) if met]

    def _grow(self, domains: int, classes: int) -> None:
        if self._matrices.shape[1] != classes:
            self._matrices = torch.empty(0, classes, classes, dtype=torch.double)
        missing = domains - len(self._matrices)
        if missing > 0:
            new = torch.full((missing, classes, classes), self.initial(classes), dtype=torch.double)
            self._matrices = torch.cat([self._matrices, new])

    def state_dict(self) -> dict[str, Any]:
        """Return the running matrices and the past ones that splits still use."""
        return {"confusion": self._matrices, "pending": list(self._pending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._matrices = state["confusion"]
        self._pending = deque(state["pending"])


def softmax_sums(logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor:
    """Sum the softmax over the samples of every (domain, class), with their count: (domains, C, C + 1).

    Closed-set logits are (N, C), classes and domains (N,). Nothing synchronises with the device.
    """
    classes = logits.shape[1]
    row = y if domain is None else domain * classes + y
    # A product with one-hot rows, because the summation order of index_add is undefined on a GPU.
    member = (row[:, None] == torch.arange(domains * classes, device=row.device)).double()
    probability = logits.detach().double().softmax(dim=1)
    sums = member.T @ torch.cat([probability, probability.new_ones(len(row), 1)], dim=1)
    return sums.view(domains, classes, classes + 1)


def block_sums(matrix: Tensor | None, groups: Sequence[tuple[int, ...]], unknown: float) -> Tensor:
    """Sum the blocks (G, G) of a matrix (C, C) that `groups` of classes make.

    Without a matrix, or with one of fewer classes, every entry counts as `unknown`.
    """
    classes = 1 + max(max(group) for group in groups)
    if matrix is None or len(matrix) < classes:
        matrix = torch.full((classes, classes), unknown, dtype=torch.double)
    if all(len(group) == 1 for group in groups):  # nothing to sum
        chosen = torch.tensor([group[0] for group in groups])
        return matrix[chosen][:, chosen]
    member = torch.zeros(len(groups), len(matrix), dtype=matrix.dtype)
    for index, group in enumerate(groups):
        member[index, list(group)] = 1
    return member @ matrix @ member.T
