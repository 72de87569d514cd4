"""A step: some tasks forwarded together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from medic.errors import MedicError


@dataclass(frozen=True)
class Step:
    """Samples of one or more tasks, forwarded as one batch, ordered by task.

    `x` (N, …) and `y` (N,) are inputs and classes, `sizes` says how many of the N samples each task has, in order,
    and `attributes` holds one integer label (N,) per further axis, the domain among them.
    """

    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    totals: tuple[int, ...] | None = None
    """The sizes of the tasks over all processes, where other processes hold the rest."""
    index: int = 0
    """The position of the step in its iteration."""

    def __post_init__(self) -> None:
        if sum(self.sizes) != len(self.y) or len(self.x) != len(self.y):
            raise MedicError(f"a step of {len(self.x)} inputs and {len(self.y)} labels has task sizes {self.sizes}")

    @property
    def domain(self) -> Tensor | None:
        """The domain of every sample (N,), where the data has domains."""
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
        """Average per-sample `values` (N,) over each task: (number of tasks,).

        In distributed training it is this process's part of the mean; the parts add up to it.
        """
        totals = self.totals or self.sizes
        return torch.stack([part.sum() / total for part, total in zip(values.split(self.sizes), totals, strict=True)])
