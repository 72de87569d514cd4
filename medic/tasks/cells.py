"""Cells: samples grouped by their labels, and the order in which they are drawn."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Cell = tuple[int, ...]
"""The labels shared by all samples of a cell, one per axis."""


class Cells:
    """The samples of a dataset or batch, grouped into cells by their labels. Stores sample positions, not images.

    Each cell is drawn in epochs: every sample is drawn once, in random order, before any sample repeats.
    """

    keys: list[Cell]
    """All non-empty cells, sorted by label."""

    def __init__(self, labels: Sequence[Tensor], samples: int) -> None:
        """Group samples by `labels`, one integer tensor of shape (samples,) per axis. Without labels, use one cell."""
        cell, self.keys = torch.zeros(samples, dtype=torch.long), [()]
        for label in labels:  # one axis at a time is much faster than unique rows
            values, position = label.cpu().long().unique(return_inverse=True)
            pairs, cell = (cell * len(values) + position).unique(return_inverse=True)
            self.keys = [(*self.keys[pair // len(values)], int(values[pair % len(values)])) for pair in pairs.tolist()]
        sizes = torch.bincount(cell, minlength=len(self.keys)).tolist()
        self._order = cell.argsort(stable=True)
        starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        self._span: dict[Cell, tuple[int, int]] = {key: (starts[i], starts[i + 1]) for i, key in enumerate(self.keys)}
        # Every cell starts exhausted, so that the first draw shuffles it.
        self._next = {key: end for key, (_, end) in self._span.items()}

    def size(self, cell: Cell) -> int:
        """Return the number of samples in a cell."""
        start, end = self._span[cell]
        return end - start

    def all(self, cells: Iterable[Cell]) -> Tensor:
        """Return the positions of all samples in some cells."""
        return torch.cat([self._order[slice(*self._span[cell])] for cell in cells])

    def draw(self, cell: Cell, count: int, generator: torch.Generator) -> Tensor:
        """Draw positions of shape (count,) from a cell. Samples repeat if the cell is smaller than `count`."""
        start, end = self._span[cell]
        drawn = []
        while count > 0:
            if self._next[cell] == end:
                shuffled = torch.randperm(end - start, generator=generator)
                self._order[start:end] = self._order[start:end][shuffled]
                self._next[cell] = start
            here = self._next[cell]
            take = min(count, end - here)
            drawn.append(self._order[here : here + take].clone())
            self._next[cell] += take
            count -= take
        return torch.cat(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return the sample order of every cell and the position of the next draw."""
        return {"order": self._order.clone(), "next": [self._next[key] for key in self.keys]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._order = state["order"].clone()
        self._next = dict(zip(self.keys, state["next"], strict=True))
