"""A step: one or more tasks that are forwarded together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from medic.errors import MedicError


@dataclass(frozen=True)
class Step:
    """The samples of one or more tasks, forwarded as one batch and ordered by task.

    `x` holds inputs of shape (N, …), and `y` classes of shape (N,). `sizes` is the number of samples per task, in
    order. `attributes` maps the domain and any further axes to integer labels of shape (N,).
    """

    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    totals: tuple[int, ...] | None = None
    """Task sizes summed over all processes, in distributed training."""
    index: int = 0
    """Position of the step in its iteration."""

    def __post_init__(self) -> None:
        if sum(self.sizes) != len(self.y) or len(self.x) != len(self.y):
            raise MedicError(f"task sizes {self.sizes} do not match {len(self.x)} inputs and {len(self.y)} labels")

    @property
    def domain(self) -> Tensor | None:
        """The domain of every sample, of shape (N,), or None if the data has no domains."""
        return self.attributes.get("domain")

    def tasks(self) -> Iterator["Step"]:
        """Yield each task as a separate step."""
        start = 0
        for size, total in zip(self.sizes, self.totals or self.sizes, strict=True):
            part = slice(start, start + size)
            attributes = {name: values[part] for name, values in self.attributes.items()}
            yield Step(self.x[part], self.y[part], (size,), attributes, (total,), self.index)
            start += size

    def means(self, values: Tensor) -> Tensor:
        """Average per-sample values of shape (N,) over each task, giving shape (number of tasks,).

        In distributed training, this is the process's share of the mean. The shares of all processes sum to the mean.
        """
        totals = self.totals or self.sizes
        return torch.stack([part.sum() / total for part, total in zip(values.split(self.sizes), totals, strict=True)])
