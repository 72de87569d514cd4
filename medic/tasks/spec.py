"""The frozen description of a grid: which axes are split, and how tasks are dealt over steps."""

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
    """A frozen description of how samples are partitioned into tasks along labelled axes, and tasks into steps.

    Domains are split into `domains` parts; then, separately for each of them (Algorithm 1 of the paper), classes into
    `classes` parts. `axes` names further axes, `{"hospital": 2}`, split between the two. An axis without splits is
    pooled and keeps its natural frequencies: `GridSpec()` is one task of everything. An axis split into 1 is balanced
    but not cut.

    `steps` is the number of tasks in each step, or the number of steps; by default the largest split.
    `pairing="diagonal"` shares one class split between the domain splits and puts (i, i + s) into step s, as MEDIC
    does; `"ordered"` draws nothing: labels and tasks keep their order. `sampling` names the sampler of class splits;
    with `separate="step"` the tasks of a domain split also go to different steps. `class_groups` splits contiguous
    groups of classes instead of single ones. `repeat` draws tasks and steps several times per iteration.
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
                raise MedicError(f"{parts} {axis} splits: give at least 1")
        if self.repeat < 1:
            raise MedicError(f"repeat is {self.repeat}: give 1 or more")
        if self.pairing == "diagonal":
            self._check_diagonal()
        assert self.round  # refuses steps that do not fit

    @cached_property
    def splits(self) -> dict[str, int]:
        """The number of splits of every axis, domains first and classes last."""
        first = {} if self.domains is None else {"domain": self.domains}
        last = {} if self.classes is None else {CLASS: self.classes}
        return {**first, **self.axes, **last}

    @cached_property
    def round(self) -> tuple[int, ...]:
        """The number of tasks in each step of one draw."""
        # A diagonal has a step per class split; elsewhere the longest axis decides.
        own = (self.classes or 1) if self.pairing == "diagonal" else max(self.splits.values(), default=1)
        return step_sizes(math.prod(self.splits.values()), own if self.steps is None else self.steps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tasks in each step of an iteration."""
        return self.round * self.repeat

    @property
    def tasks(self) -> int:
        """The number of tasks of an iteration, t."""
        return sum(self.sizes)

    @property
    def separates(self) -> bool:
        """Whether it matters which tasks share a step."""
        return self.pairing == "random" and len(self.round) > 1

    def fitted(self, domains: int, classes: int) -> "GridSpec":
        """Return the grid with at most as many splits as domains and classes; steps follow if it shrinks."""
        fewer = None if self.domains is None else min(self.domains, domains)
        smaller = None if self.classes is None else min(self.classes, classes)
        same = (fewer, smaller) == (self.domains, self.classes)
        return replace(self, domains=fewer, classes=smaller, steps=self.steps if same else None)

    def _check_diagonal(self) -> None:
        rows, columns = math.prod(list(self.splits.values())[:-1]), list(self.splits.values())[-1:]
        if columns == [] or self.round != (rows,) * columns[0]:
            raise MedicError(
                "the diagonal pairing needs one step per class split, each with one task of every domain split, "
                f"not {' × '.join(map(str, self.splits.values()))} in steps {self.round}"
            )
