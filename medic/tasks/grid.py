"""The grid: cells → tasks → steps."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from medic.errors import MedicError, check_choice, counted, warn
from medic.tasks.cells import Cell, Cells
from medic.tasks.lagged import Lagged, softmax_sums
from medic.tasks.partition import chunks, step_sizes
from medic.tasks.samplers import SAMPLERS, Random, Sampler
from medic.tasks.step import Step

CLASS = "class"
_REDRAWS = 100
_PATIENCE = 10
"""Draws beyond those that are made ahead after which a sampler that learns should have been told something."""
Pairing = Literal["random", "diagonal", "ordered"]
Separation = Literal["task", "step"]


class Task(NamedTuple):
    """A mini-batch from some cells: their labels, and the positions (N,) of its samples."""

    cells: list[Cell]
    indices: Tensor


@dataclass
class Grid:
    """Partitions samples into tasks along labelled axes, and deals the tasks over steps.

    Domains are split into `domains` parts; then, separately for each of them (Algorithm 1 of the paper), classes
    into `classes` parts. `axes` names further axes, `{"hospital": 2}`, split between the two. An axis that is not
    given is pooled: `Grid()` is one task of everything. An axis split into 1 is balanced but not cut.

    `steps` is the number of tasks in each step, or the number of steps; left out, it is the largest split.
    `pairing="diagonal"` shares one class split between the domain splits and puts (i, i + s) into step s, as MEDIC
    does; `"ordered"` draws nothing: labels and tasks stay in their order. `sampling` names a sampler for class splits;
    with `separate="step"` the tasks of a domain split also go to different steps. `class_groups` makes contiguous
    groups of classes the unit of splitting. `repeat` draws all of this so many times for one iteration. Where `held` is
    set to a domain, that is the last of the domain parts by itself.
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
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLERS)
        check_choice("pairing", self.pairing, get_args(Pairing))
        check_choice("separation", self.separate, get_args(Separation))
        first = {} if self.domains is None else {"domain": self.domains}
        last = {} if self.classes is None else {CLASS: self.classes}
        self.splits: dict[str, int] = {**first, **self.axes, **last}
        for axis, parts in self.splits.items():
            if parts < 1:
                raise MedicError(f"{parts} {axis} splits: give at least 1")
        if self.repeat < 1:
            raise MedicError(f"repeat is {self.repeat}: a grid is drawn 1 time or more")
        once = math.prod(self.splits.values())
        # A diagonal has a step for every class split; elsewhere the longest axis decides.
        own = (self.classes or 1) if self.pairing == "diagonal" else max(self.splits.values(), default=1)
        self.round = step_sizes(once, own if self.steps is None else self.steps)
        # The tasks in each step, of one draw and of an iteration.
        self.sizes = self.round * self.repeat
        if self.pairing == "diagonal":
            self._check_diagonal()
        self.sampler: Sampler = SAMPLERS[self.sampling]()
        self.generator = torch.Generator().manual_seed(self.seed)
        # Tasks that are dealt instead of those of a split.
        self.chosen: list[list[Cell]] | None = None
        self.held: int | None = None
        self._groups: list[tuple[int, ...]] = []
        # What labels on an axis are called, where that is known.
        self.names: Mapping[str, Sequence[str]] = {}
        self._draws = 0
        self._said: set[str] = set()

    @property
    def tasks(self) -> int:
        """The number of tasks of an iteration, t."""
        return self.repeat * math.prod(self.splits.values())

    @property
    def separates(self) -> bool:
        """Whether it matters which of its tasks share a step."""
        return self.pairing == "random" and len(self.round) > 1

    def __call__(self, x: Tensor, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> list[Step]:
        """Partition a batch: every sample is in exactly one task of one step.

        A batch that lacks domains or classes makes fewer tasks, which is said once.
        """
        if self.class_groups is not None:
            raise MedicError("class_groups needs the classes of a whole dataset: draw from `index` instead")
        if self.sampling == "informative":
            raise MedicError("sampling 'informative' tries tasks on the model in training: use it with medic.train")
        attributes = attributes if domain is None else {"domain": domain, **attributes}
        cells = self._index(y, attributes)
        if self.repeat > 1:
            raise MedicError(f"a batch is partitioned once, not {self.repeat} times: draw from `index` instead")
        steps = self._steps(cells.keys)
        self._check_told()
        return [
            gather([Task(task, cells.all(task)) for task in step], x, y, attributes, index)
            for index, step in enumerate(steps)
        ]

    def index(self, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> Cells:
        """Index the samples of a dataset by their labels on the axes of this grid, and check that it fits them."""
        cells = self._index(y, attributes if domain is None else {"domain": domain, **attributes})
        for axis, (name, parts) in enumerate(self.splits.items()):
            _check_enough(name, parts, {cell[axis] for cell in cells.keys}, "the data has")
        if len(self.splits) > 1:
            self._check_branches(cells)
        return cells

    def draw(self, cells: Cells, batch_size: int, ahead: int = 0) -> list[list[Task]]:
        """Draw the tasks of one iteration, step by step: `batch_size` samples each, equally from its cells.

        An iteration can be drawn before its turn, with the same result: `ahead` says how many others were drawn but not
        observed yet.
        """
        steps = [step for _ in range(self.repeat) for step in self._steps(cells.keys, ahead)]
        self._check_told()
        return [[Task(task, self.sample(cells, task, batch_size)) for task in step] for step in steps]

    def sample(self, cells: Cells, task: Sequence[Cell], batch_size: int) -> Tensor:
        """Draw a task's positions (batch_size,): equal counts per cell, what is left over to random ones."""
        count, extra = divmod(batch_size, len(task))
        lucky = set(torch.randperm(len(task), generator=self.generator)[:extra].tolist())
        counts = [count + (position in lucky) for position in range(len(task))]
        for cell, needed in zip(task, counts, strict=True):
            if cells.size(cell) < needed:
                labels = ", ".join(itertools.starmap(self._named, zip(self.splits, cell, strict=True)))
                has = f"{labels or 'the data'} has {counted(cells.size(cell), 'sample')}"
                self._say("short", f"{has} for {needed} of a task: some repeat")
        drawn = [cells.draw(cell, n, self.generator) for cell, n in zip(task, counts, strict=True) if n]
        return torch.cat(drawn)

    def candidates(self, cells: Cells, splits: int) -> list[list[Cell]]:
        """The tasks of some independent splits."""
        return [task for _ in range(splits) for row in self._split(cells.keys) for task in row if task]

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None = None) -> None:
        """Tell the sampler what the model said in an iteration: close-set logits (N, C), classes and domains (N,)."""
        domains = 1 if domain is None else 1 + int(domain.max())
        summarise = softmax_sums if self.sampler.probes else self.sampler.summarise
        summary = summarise(logits, y, domain, domains)
        if summary is not None:
            self.sampler.observe(summary.cpu())

    def fitted(self, domains: int, classes: int) -> "Grid":
        """A new grid like this with no more splits than there are domains and classes; steps follow if it shrinks."""
        fewer = None if self.domains is None else min(self.domains, domains)
        smaller = None if self.classes is None else min(self.classes, classes)
        same = (fewer, smaller) == (self.domains, self.classes)
        return replace(self, domains=fewer, classes=smaller, steps=self.steps if same else None)

    def state_dict(self) -> dict[str, Any]:
        """The generator, the sampler, the tasks that were chosen and the domain that is held."""
        return {
            "generator": self.generator.get_state(),
            "sampler": self.sampler.state_dict(),
            "chosen": self.chosen,
            "held": self.held,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""
        self.generator.set_state(state["generator"])
        self.sampler.load_state_dict(state["sampler"])
        self.chosen = state["chosen"]
        self.held = state["held"]

    def _index(self, y: Tensor, attributes: Mapping[str, Tensor]) -> Cells:
        known = {CLASS: y, **attributes}
        missing = [axis for axis in self.splits if axis not in known]
        if missing:
            raise MedicError(f"the grid splits {missing[0]!r}, but the samples come without it: pass {missing[0]}=…")
        labels = [self._grouped(known[axis]) if axis == CLASS else known[axis] for axis in self.splits]
        return Cells(labels, len(y))

    def _check_branches(self, cells: Cells) -> None:
        """Check that every part that the first axis can be split into has enough labels on the last."""
        first, *_, last = self.splits.items()
        found: dict[int, set[int]] = {}
        for cell in cells.keys:
            found.setdefault(cell[0], set()).add(cell[-1])
        # A part of several values has at least the labels of each; which of them fall together is not known yet.
        if len(found) // first[1] == 1:
            for value, labels in found.items():
                _check_enough(*last, labels, f"{self._named(first[0], value)} has")

    def _check_diagonal(self) -> None:
        rows, columns = math.prod(list(self.splits.values())[:-1]), list(self.splits.values())[-1:]
        if columns == [] or self.round != (rows,) * columns[0]:
            raise MedicError(
                "the diagonal pairing needs one step per class split, each with one task of every domain split, "
                f"not {' × '.join(map(str, self.splits.values()))} in steps {self.round}"
            )

    def _grouped(self, y: Tensor) -> Tensor:
        """Replace classes by the contiguous group that each belongs to, and remember the groups."""
        if self.class_groups is None:
            return y
        classes = y.unique().tolist()
        if self.class_groups > len(classes):
            raise MedicError(f"{self.class_groups} class groups need as many classes, but there are {len(classes)}")
        self._groups = chunks(classes, self.class_groups)
        group_of = {label: group for group, labels in enumerate(self._groups) for label in labels}
        return torch.tensor([group_of[label] for label in y.tolist()])

    def _steps(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """The tasks of every step, as lists of cells, so many iterations ahead of what was observed."""
        if self.chosen is not None and (rows := _rows(self.chosen, set(cells))):
            return self._spread(rows)
        for _ in range(_REDRAWS):
            split = self._split(cells, ahead)
            steps = self._deal(split)
            # A shared class split can miss the classes that a domain has, and leave a step without any task.
            if self.pairing != "diagonal" or len(steps) == len(split[0]):
                break
        return steps

    def _split(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """Split every axis: for each part of the axes before the last, the cells of its tasks."""
        if not self.splits:
            return [[list(cells)]]
        branches, last = [list(cells)], len(self.splits) - 1
        for axis in range(last):
            branches = [part for branch in branches for part in _cut(branch, axis, self._parts(branch, axis, ahead))]
        if self.pairing == "diagonal":
            shared = self._parts(cells, last, ahead)
            return [_cut(branch, last, shared) for branch in branches]
        return [_cut(branch, last, self._parts(branch, last, ahead)) for branch in branches]

    def _parts(self, cells: Sequence[Cell], axis: int, ahead: int) -> list[set[int]]:
        """Deal the labels that `cells` have on an axis over its splits."""
        name, count = list(self.splits.items())[axis]
        values = sorted({cell[axis] for cell in cells})
        if len(values) < count:
            self._say(name, f"{len(values)} of {count} {name} splits can be made of what a batch or a domain holds")
        held = self.held if name == "domain" and count > 1 and {self.held} < set(values) else None
        if held is not None:
            values.remove(held)
            count -= 1
        groups = [self._groups[value] if name == CLASS and self._groups else (value,) for value in values]
        domains = sorted({cell[0] for cell in cells}) if self.domains is not None else []
        if self.pairing == "ordered":
            dealt = [list(part) for part in chunks(range(len(values)), count)]
        else:
            sampler = self.sampler if name == CLASS else Random()
            dealt = sampler.split(domains, groups, count, self.generator, ahead)
        parts = [{values[position] for position in part} for part in dealt if part]
        return parts if held is None else [*parts, {held}]

    def _deal(self, split: list[list[list[Cell]]]) -> list[list[list[Cell]]]:
        """Deal the tasks of a split over the steps."""
        if self.pairing == "diagonal":
            columns = len(split[0])  # fewer than steps, if there are fewer classes
            steps = [[row[(i + s) % columns] for i, row in enumerate(split)] for s in range(columns)]
            return [[task for task in step if task] for step in steps if any(step)]
        return self._spread(split)

    def _spread(self, split: list[list[list[Cell]]]) -> list[list[list[Cell]]]:
        """Deal the tasks of a split over the steps, wherever they come from."""
        rows = [self._shuffled(row) for row in split]
        # Rank by rank, so that the tasks of one row are as far apart as the sizes of the steps allow.
        tasks = [row[rank] for rank in range(max(map(len, rows))) for row in rows if rank < len(row)]
        if self.separate == "task":
            tasks = self._shuffled(tasks)
        ends = list(itertools.accumulate(_shrunk(self.round, len(tasks)), initial=0))
        return [tasks[a:b] for a, b in itertools.pairwise(ends)]

    def _shuffled(self, items: list[list[Cell]]) -> list[list[Cell]]:
        if self.pairing == "ordered":
            return items
        return [items[i] for i in torch.randperm(len(items), generator=self.generator).tolist()]

    def _check_told(self) -> None:
        """Say so if a sampler that learns has been told nothing for longer than it takes in training."""
        self._draws += 1
        if (
            isinstance(self.sampler, Lagged)
            and self.classes is not None
            and self.pairing != "ordered"
            and not self.sampler.observed
            and self._draws > self.sampler.ahead + _PATIENCE
        ):
            self._say(
                "untold",
                f"sampling {self.sampling!r} learns from what the model says and was told nothing in {self._draws} "
                "draws: call grid.observe(update.logits, update.y, update.domain) after each update",
            )

    def _named(self, axis: str, label: int) -> str:
        """A label of an axis, for people."""
        if axis == CLASS and self._groups:
            return f"class group {label}"
        return f"{axis} {self.names[axis][label]!r}" if axis in self.names else f"{axis} {label}"

    def _say(self, kind: str, message: str) -> None:
        """Warn once of each kind of thing, not once an iteration."""
        if kind not in self._said:
            self._said.add(kind)
            warn(message)


def _check_enough(axis: str, parts: int, values: set[int], where: str) -> None:
    if len(values) < parts:
        plural = "classes" if axis == CLASS else f"{axis}s"
        raise MedicError(f"{parts} {axis} splits need {parts} {plural} or more, but {where} {len(values)}")


def _cut(cells: Sequence[Cell], axis: int, parts: Sequence[set[int]]) -> list[list[Cell]]:
    return [[cell for cell in cells if cell[axis] in part] for part in parts]


def _rows(tasks: Sequence[list[Cell]], there: set[Cell]) -> list[list[list[Cell]]]:
    """Tasks by row, those that differ in the last axis alone in one, without cells that are not there any more."""
    rows: dict[frozenset[Cell], list[list[Cell]]] = {}
    for task in tasks:
        kept = [cell for cell in task if cell in there]
        if kept:
            rows.setdefault(frozenset(cell[:-1] for cell in kept), []).append(kept)
    return list(rows.values())


def _shrunk(sizes: Sequence[int], tasks: int) -> list[int]:
    """Take tasks off the largest steps, the last first, until there are `tasks`."""
    shrunk = list(sizes)
    while sum(shrunk) > tasks:
        largest = max(range(len(shrunk)), key=lambda step: (shrunk[step], step))
        shrunk[largest] -= 1
    return [size for size in shrunk if size]


def gather(tasks: Sequence[Task], x: Tensor, y: Tensor, attributes: Mapping[str, Tensor], index: int = 0) -> Step:
    """Collect the samples of some tasks into one step."""
    indices = torch.cat([task.indices for task in tasks])
    taken = {name: labels[indices.to(labels.device)] for name, labels in attributes.items()}
    sizes = tuple(len(task.indices) for task in tasks)
    return Step(x[indices.to(x.device)], y[indices.to(y.device)], sizes, taken, index=index)
