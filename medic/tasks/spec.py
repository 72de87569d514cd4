"""The specification of a grid: which axes to split, and how to distribute tasks over steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from medic.errors import MedicError, check_choice
from medic.tasks.partition import step_sizes
from medic.tasks.samplers import SAMPLERS

CLASS = "class"
Pairing = Literal["random", "diagonal", "ordered"]
Separation = Literal["task", "step"]


@dataclass(frozen=True)
class GridSpec:
    """The specification of how to partition samples into tasks along labelled axes, and tasks into steps.

    The grid splits domains into `domains` parts. Within each part, it splits classes into `classes` parts (Algorithm 1
    of the paper). `axes` adds further axes between the two, for example `{"hospital": 2}`. An axis without splits is
    pooled and keeps its natural frequencies: `GridSpec()` is a single task with all samples. An axis with 1 split is
    balanced but not divided.

    - `steps`: the number of steps, or the number of tasks in each step. Defaults to the largest number of splits.
    - `pairing`: `"diagonal"` uses the same class split in all domain splits and puts (i, i + s) into step s, as MEDIC
      does. `"ordered"` keeps labels and tasks in order, without randomness.
    - `sampling`: the name of the sampler for class splits.
    - `separate`: `"step"` also puts the tasks of a domain split into different steps.
    - `class_groups`: split contiguous class groups instead of single classes.
    - `repeat`: how many times to draw tasks and steps per iteration.
    """

    domains: int | None = None
    classes: int | None = None
    steps: int | Sequence[int] | None = None
    _: KW_ONLY
    axes: Mapping[str, int] = field(default_factory=dict)
    pairing: Pairing = "random"
    sampling: str = "random"
    separate: Separation = "task"
    class_groups: int | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLERS)
        check_choice("pairing", self.pairing, get_args(Pairing))
        check_choice("separation", self.separate, get_args(Separation))
        for axis, parts in self.splits.items():
            if parts < 1:
                raise MedicError(f"the number of {axis} splits must be at least 1, got {parts}")
        if self.repeat < 1:
            raise MedicError(f"repeat must be at least 1, got {self.repeat}")
        if self.pairing == "diagonal":
            self._check_diagonal()
        assert self.round  # raises an error for invalid steps

    @cached_property
    def splits(self) -> dict[str, int]:
        """The number of splits per axis. Domains come first, classes last."""
        first = {} if self.domains is None else {"domain": self.domains}
        last = {} if self.classes is None else {CLASS: self.classes}
        return {**first, **self.axes, **last}

    @cached_property
    def round(self) -> tuple[int, ...]:
        """The number of tasks in each step of one draw."""
        # A diagonal has one step per class split; otherwise the axis with the most splits decides.
        own = (self.classes or 1) if self.pairing == "diagonal" else max(self.splits.values(), default=1)
        return step_sizes(math.prod(self.splits.values()), own if self.steps is None else self.steps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tasks in each step of an iteration."""
        return self.round * self.repeat

    @property
    def tasks(self) -> int:
        """The number of tasks, t, in an iteration."""
        return sum(self.sizes)

    @property
    def separates(self) -> bool:
        """Whether the `separate` setting has an effect."""
        return self.pairing == "random" and len(self.round) > 1

    def fitted(self, domains: int, classes: int) -> "GridSpec":
        """Limit the splits to the number of domains and classes. If they shrink, `steps` is reset to its default."""
        fewer = None if self.domains is None else min(self.domains, domains)
        smaller = None if self.classes is None else min(self.classes, classes)
        same = (fewer, smaller) == (self.domains, self.classes)
        return replace(self, domains=fewer, classes=smaller, steps=self.steps if same else None)

    def _check_diagonal(self) -> None:
        rows, columns = math.prod(list(self.splits.values())[:-1]), list(self.splits.values())[-1:]
        if columns == [] or self.round != (rows,) * columns[0]:
            raise MedicError(
                "pairing 'diagonal' requires one step per class split, each with one task per domain split, "
                f"got {' × '.join(map(str, self.splits.values()))} in steps {self.round}"
            )
