"""Base classes for samplers. Samplers that learn use a confusion matrix per domain, with a lag of a few iterations."""

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
"""The units of a class split: single classes, or contiguous groups of classes."""
Split = list[list[int]]
"""Positions in the list of groups, for every task."""


class Sampler:
    """Base class for samplers, which distribute classes over tasks and may learn from the training outputs.

    `summarise` reduces the outputs to a small tensor on the device. Some iterations later, `observe` receives it on the
    host. By default, a sampler does not learn.
    """

    ahead: int
    """Number of iterations that can be split before the first one is observed, without changing the result."""
    probes: bool = False
    """Whether the sampler observes fresh images after every iteration instead of the training outputs."""

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Distribute the class groups of a domain split over `parts` tasks, as positions in `groups`.

        `ahead` is the number of iterations already split but not yet observed.
        """
        raise NotImplementedError

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Summarise closed-set logits of shape (N, C), with classes `y` and domains of shape (N,), on their device."""
        return None

    def observe(self, summary: Tensor) -> None:
        """Learn from the summary of an iteration."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later splits depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""


@dataclass
class Lagged(Sampler, ABC):
    """A sampler that tracks how the model confuses classes, with one matrix of shape (C, C) per domain.

    A split uses the matrices from `lag` iterations earlier. The result is therefore the same on every device, even if
    it is drawn up to `lag - 1` iterations ahead.
    """

    _: KW_ONLY
    lag: int = hyperparameter(4, least=1)

    def __post_init__(self) -> None:
        check_hyperparameters(self)
        self.ahead = self.lag - 1
        self._matrices = torch.empty(0, 0, 0)  # (domains, classes, classes), grows as domains are observed
        self._pending: deque[Tensor] = deque()

    @abstractmethod
    def initial(self, classes: int) -> float:
        """Return the initial value of all matrix entries."""

    @abstractmethod
    def updated(self, matrices: Tensor, mean: Tensor, met: Tensor) -> Tensor:
        """Return the matrices, of shape (D, C, C), after an iteration.

        Each row of `mean`, of shape (D, C, C), is the mean softmax for one domain and class. `met`, of shape (D, C, 1),
        marks the rows that have samples.
        """

    @property
    def observed(self) -> bool:
        """Whether the sampler has observed any iteration."""
        return len(self._matrices) > 0

    def past(self, domains: Sequence[int], ahead: int = 0) -> Tensor | None:
        """Return the lagged matrices of `domains`, of shape (number, C, C), or None before any observation.

        An empty list stands for all observed domains.
        """
        position = len(self._pending) - self.lag + ahead
        if position < 0:
            return None
        past = self._pending[position]
        known = [domain for domain in domains or self._met(past) if domain < len(past)]
        return past[known] if known else None

    def summarise(self, logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor | None:
        """Sum the softmax over the samples of each domain and class."""
        return softmax_sums(logits, y, domain, domains)

    def observe(self, summary: Tensor) -> None:
        """Update the matrices with the mean softmax of each domain and class in the iteration."""
        sums, counts = summary[..., :-1], summary[..., -1:]
        self._grow(*sums.shape[:2])
        updated = self.updated(self._matrices[: len(sums)], sums / counts.clamp(min=1), counts > 0)
        self._matrices = torch.cat([updated, self._matrices[len(sums) :]])
        self._remember()

    def _remember(self) -> None:
        """Keep the current matrices until splits no longer use them."""
        self._pending.append(self._matrices)
        if len(self._pending) > self.lag:
            self._pending.popleft()

    def _met(self, matrices: Tensor) -> list[int]:
        """Return the domains whose matrices have been updated. A separate list of domains would ignore the lag."""
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
        """Return the current matrices and the past matrices that splits still use."""
        return {"confusion": self._matrices, "pending": list(self._pending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._matrices = state["confusion"]
        self._pending = deque(state["pending"])


def softmax_sums(logits: Tensor, y: Tensor, domain: Tensor | None, domains: int) -> Tensor:
    """Sum the softmax over the samples of each domain and class, and append the number of samples.

    Closed-set logits have shape (N, C), classes and domains shape (N,), and the result shape (domains, C, C + 1). Does
    not synchronise with the device.
    """
    classes = logits.shape[1]
    row = y if domain is None else domain * classes + y
    # Use a product with one-hot rows: index_add has no fixed summation order on a GPU.
    member = (row[:, None] == torch.arange(domains * classes, device=row.device)).double()
    probability = logits.detach().double().softmax(dim=1)
    sums = member.T @ torch.cat([probability, probability.new_ones(len(row), 1)], dim=1)
    return sums.view(domains, classes, classes + 1)


def block_sums(matrix: Tensor | None, groups: Sequence[tuple[int, ...]], unknown: float) -> Tensor:
    """Sum a matrix of shape (C, C) over blocks of class groups, giving shape (G, G).

    If the matrix is None or has too few classes, every entry is taken to be `unknown`.
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
