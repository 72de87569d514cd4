"""The grid: cells → tasks → steps."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError, counted, warn
from medic.tasks.cells import Cell, Cells
from medic.tasks.lagged import Lagged, Sampler, softmax_sums
from medic.tasks.partition import chunks
from medic.tasks.samplers import SAMPLERS, Random
from medic.tasks.spec import CLASS, GridSpec
from medic.tasks.step import Step


class Task(NamedTuple):
    """A mini-batch from some cells: their labels, and the positions (N,) of its samples."""

    cells: list[Cell]
    indices: Tensor


class Grid:
    """Partitions samples into tasks, and deals the tasks over steps; `GridSpec` explains the arguments.

    `sampler` replaces the one that `sampling` names, to give it other hyperparameters. Where `held_out` is set to a
    domain, that domain alone is the last of the domain splits.
    """

    def __init__(
        self,
        domains: int | GridSpec | None = None,
        classes: int | None = None,
        steps: int | Sequence[int] | None = None,
        *,
        seed: int = 0,
        sampler: Sampler | None = None,
        **options: Any,
    ) -> None:
        """Make a grid of a `GridSpec`, or of the arguments of one."""
        self.spec = domains if isinstance(domains, GridSpec) else GridSpec(domains, classes, steps, **options)
        self.sampler = sampler or SAMPLERS[self.spec.sampling]()
        self.generator = torch.Generator().manual_seed(seed)
        # Tasks that are dealt instead of those of a split.
        self.chosen: list[list[Cell]] | None = None
        self.held_out: int | None = None
        self.names: Mapping[str, Sequence[str]] = {}  # of the labels on an axis, for messages
        self._groups: list[tuple[int, ...]] = []
        self._draws = 0
        self._warned: set[str] = set()

    @property
    def tasks(self) -> int:
        """The number of tasks of an iteration, t."""
        return self.spec.tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tasks in each step of an iteration."""
        return self.spec.sizes

    def __call__(self, x: Tensor, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> list[Step]:
        """Partition a batch: every sample is in exactly one task of one step.

        A grid with `repeat` partitions the batch that many times, one after the other. A batch that lacks domains or
        classes makes fewer tasks, with one warning.
        """
        if self.spec.class_groups is not None:
            raise MedicError("class_groups needs the classes of a whole dataset: draw from `index` instead")
        if self.spec.sampling == "informative":
            raise MedicError("sampling 'informative' tries tasks on the model in training: use it with medic.train")
        attributes = attributes if domain is None else {"domain": domain, **attributes}
        y, attributes = _check_batch(x, y, attributes)
        cells = self._index(y, attributes)
        if CLASS in self.spec.splits and cells.keys and (lowest := min(cell[-1] for cell in cells.keys)) < 0:
            raise MedicError(f"label {lowest} is no class to train on: leave out unknown samples, as in x[y >= 0]")
        rounds = (self._steps(cells.keys) for _ in range(self.spec.repeat))
        steps = [[Task(task, cells.all(task)) for task in step] for steps in rounds for step in steps]
        self._check_observed()
        return [gather(tasks, x, y, attributes, index) for index, tasks in enumerate(steps)]

    def index(self, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> Cells:
        """Index the samples of a dataset by their labels on the axes, and check that the grid fits them."""
        cells = self._index(y, attributes if domain is None else {"domain": domain, **attributes})
        for axis, (name, parts) in enumerate(self.spec.splits.items()):
            _check_enough(name, parts, {cell[axis] for cell in cells.keys}, "the data has")
        if len(self.spec.splits) > 1:
            self._check_branches(cells)
        return cells

    def draw(self, cells: Cells, batch_size: int, ahead: int = 0) -> list[list[Task]]:
        """Draw the tasks of one iteration, step by step: `batch_size` samples each, in equal parts from its cells.

        An iteration can be drawn ahead with the same result: `ahead` is the number of drawn iterations that were not
        observed yet.
        """
        steps = [step for _ in range(self.spec.repeat) for step in self._steps(cells.keys, ahead)]
        self._check_observed()
        return [[Task(task, self.sample(cells, task, batch_size)) for task in step] for step in steps]

    def sample(self, cells: Cells, task: Sequence[Cell], batch_size: int) -> Tensor:
        """Draw a task's positions (batch_size,): equal counts per cell, the remainder from random cells."""
        count, extra = divmod(batch_size, len(task))
        with_extra = set(torch.randperm(len(task), generator=self.generator)[:extra].tolist())
        counts = [count + (position in with_extra) for position in range(len(task))]
        for cell, needed in zip(task, counts, strict=True):
            if cells.size(cell) < needed:
                labels = ", ".join(itertools.starmap(self._named, zip(self.spec.splits, cell, strict=True)))
                has = f"{labels or 'the data'} has {counted(cells.size(cell), 'sample')}"
                self._warn("short", f"{has} for {needed} of a task: some repeat")
        drawn = [cells.draw(cell, n, self.generator) for cell, n in zip(task, counts, strict=True) if n]
        return torch.cat(drawn)

    def probe(self, cells: Cells, batch_size: int) -> Task:
        """Draw a task of all cells, in equal parts, of as many samples as an iteration has.

        The samples are of the same epochs as those of training, as in the authors' code: an epoch does not train on
        them.
        """
        count = max(1, batch_size * self.tasks // len(cells.keys))
        return Task(list(cells.keys), torch.cat([cells.draw(cell, count, self.generator) for cell in cells.keys]))

    def candidates(self, cells: Cells, splits: int) -> list[list[Cell]]:
        """Return the tasks of some independent splits."""
        return [task for _ in range(splits) for row in self._split(cells.keys) for task in row if task]

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None = None) -> None:
        """Show the sampler the closed-set logits (N, C) of an iteration, with classes and domains (N,)."""
        domains = 1 if domain is None else 1 + int(domain.max())
        summarise = softmax_sums if self.sampler.probes else self.sampler.summarise
        summary = summarise(logits, y, domain, domains)
        if summary is not None:
            self.sampler.observe(summary.cpu())

    def state_dict(self) -> dict[str, Any]:
        """Return the generator, the sampler, the chosen tasks and the held-out domain."""
        return {
            "generator": self.generator.get_state(),
            "sampler": self.sampler.state_dict(),
            "chosen": self.chosen,
            "held": self.held_out,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.generator.set_state(state["generator"])
        self.sampler.load_state_dict(state["sampler"])
        self.chosen = state["chosen"]
        self.held_out = state["held"]

    def _index(self, y: Tensor, attributes: Mapping[str, Tensor]) -> Cells:
        known = {CLASS: y, **attributes}
        missing = [axis for axis in self.spec.splits if axis not in known]
        if missing:
            raise MedicError(f"the grid splits {missing[0]!r}, but the samples come without it: pass {missing[0]}=…")
        labels = [self._grouped(known[axis]) if axis == CLASS else known[axis] for axis in self.spec.splits]
        return Cells(labels, len(y))

    def _check_branches(self, cells: Cells) -> None:
        """Check that every part that the first axis can be split into has enough labels on the last."""
        first, *_, last = self.spec.splits.items()
        labels_by_value: dict[int, set[int]] = {}
        for cell in cells.keys:
            labels_by_value.setdefault(cell[0], set()).add(cell[-1])
        # A part of several values has at least the labels of each of them.
        if len(labels_by_value) // first[1] == 1:
            for value, labels in labels_by_value.items():
                _check_enough(*last, labels, f"{self._named(first[0], value)} has")

    def _grouped(self, y: Tensor) -> Tensor:
        """Replace classes by their contiguous group, and remember the groups."""
        if self.spec.class_groups is None:
            return y
        classes = y.unique().tolist()
        count = self.spec.class_groups
        if count > len(classes):
            raise MedicError(f"{count} class groups need {count} classes, but the data has {len(classes)}")
        self._groups = chunks(classes, count)
        group_of = {label: group for group, labels in enumerate(self._groups) for label in labels}
        return torch.tensor([group_of[label] for label in y.tolist()])

    def _steps(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """Return the tasks of every step, as lists of cells, `ahead` iterations before they are observed."""
        if self.chosen is not None and (rows := _rows(self.chosen, set(cells))):
            return self._deal(rows)
        if self.spec.pairing != "diagonal":
            return self._deal(self._split(cells, ahead))
        for _ in range(100):
            split = self._split(cells, ahead)
            columns = len(split[0])  # fewer than steps if the batch has fewer classes
            steps = [[row[(i + s) % columns] for i, row in enumerate(split)] for s in range(columns)]
            # A shared class split can miss the classes of a domain, which can leave a step without tasks: draw again.
            if all(any(step) for step in steps):
                break
        return [[task for task in step if task] for step in steps if any(step)]

    def _split(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """Split every axis: for each part of the axes before the last, the cells of its tasks."""
        if not self.spec.splits:
            return [[list(cells)]]
        branches, last = [list(cells)], len(self.spec.splits) - 1
        for axis in range(last):
            branches = [part for branch in branches for part in _cut(branch, axis, self._parts(branch, axis, ahead))]
        if self.spec.pairing == "diagonal":
            shared = self._parts(cells, last, ahead)
            return [_cut(branch, last, shared) for branch in branches]
        return [_cut(branch, last, self._parts(branch, last, ahead)) for branch in branches]

    def _parts(self, cells: Sequence[Cell], axis: int, ahead: int) -> list[set[int]]:
        """Deal the labels that `cells` have on an axis over its splits."""
        name, count = list(self.spec.splits.items())[axis]
        values = sorted({cell[axis] for cell in cells})
        if len(values) < count:
            self._warn(name, f"only {len(values)} of {count} {name} splits fit the labels of a batch or domain")
        held = self.held_out if name == "domain" and count > 1 and {self.held_out} < set(values) else None
        if held is not None:
            values.remove(held)
            count -= 1
        groups = [self._groups[value] if name == CLASS and self._groups else (value,) for value in values]
        domains = sorted({cell[0] for cell in cells}) if self.spec.domains is not None else []
        if self.spec.pairing == "ordered":
            dealt = [list(part) for part in chunks(range(len(values)), count)]
        else:
            sampler = self.sampler if name == CLASS else Random()
            dealt = sampler.split(domains, groups, count, self.generator, ahead)
        parts = [{values[position] for position in part} for part in dealt if part]
        return parts if held is None else [*parts, {held}]

    def _deal(self, rows: list[list[list[Cell]]]) -> list[list[list[Cell]]]:
        """Deal tasks, in rows that differ in the last axis alone, over the steps."""
        rows = [self._shuffled(row) for row in rows]
        # Rank by rank, so that the tasks of one row are as far apart as the step sizes allow.
        tasks = [row[rank] for rank in range(max(map(len, rows))) for row in rows if rank < len(row)]
        if self.spec.separate == "task":
            tasks = self._shuffled(tasks)
        ends = list(itertools.accumulate(_shrunk(self.spec.round, len(tasks)), initial=0))
        return [tasks[a:b] for a, b in itertools.pairwise(ends)]

    def _shuffled(self, items: list[list[Cell]]) -> list[list[Cell]]:
        if self.spec.pairing == "ordered":
            return items
        return [items[i] for i in torch.randperm(len(items), generator=self.generator).tolist()]

    def _check_observed(self) -> None:
        """Warn if a sampler that learns has observed nothing for longer than training takes."""
        self._draws += 1
        if (
            isinstance(self.sampler, Lagged)
            and self.spec.classes is not None
            and self.spec.pairing != "ordered"
            and not self.sampler.observed
            and self._draws > self.sampler.ahead + 10  # ten more than can be drawn ahead
        ):
            self._warn(
                "unobserved",
                f"sampling {self.spec.sampling!r} learns from the model's outputs but observed none in {self._draws} "
                "draws: call grid.observe(update.logits, update.y, update.domain) after each update",
            )

    def _named(self, axis: str, label: int) -> str:
        """Return the name of a label on an axis."""
        if axis == CLASS and self._groups:
            return f"class group {label}"
        return f"{axis} {self.names[axis][label]!r}" if axis in self.names else f"{axis} {label}"

    def _warn(self, kind: str, message: str) -> None:
        """Warn once of each kind of problem, not once per iteration."""
        if kind not in self._warned:
            self._warned.add(kind)
            warn(message)


def _check_batch(x: Any, y: Any, attributes: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Refuse a batch of other types or lengths; return its classes and attributes as int64. No value is read."""
    if not isinstance(x, Tensor) or not x.ndim:
        raise MedicError(f"x is a {type(x).__name__}: give a tensor of inputs, (samples, …), as in torch.stack(images)")
    for name, labels in ((CLASS, y), *attributes.items()):
        what = "y" if name == CLASS else name
        if not isinstance(labels, Tensor):
            first = labels[0] if isinstance(labels, list | tuple) and labels else None
            way = f"torch.tensor([names.index(one) for one in {what}])" if isinstance(first, str) else "torch.as_tensor"
            kind = f"a {type(labels).__name__}" + (f" of names such as {first!r}" if isinstance(first, str) else "")
            raise MedicError(f"{what} is {kind}: give a tensor of whole numbers, one per sample; {way} makes one")
        if labels.ndim != 1 or len(labels) != len(x):
            hint = "; one-hot rows become classes by argmax(1)" if labels.ndim == 2 and labels.shape[1] > 1 else ""
            raise MedicError(
                f"{what} has shape {tuple(labels.shape)} for {len(x)} inputs: give one whole number per input, shape "
                f"({len(x)},){hint}"
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise MedicError(f"{what} has type {labels.dtype}: give whole numbers, {what}.long()")
    if not len(x):
        raise MedicError("the batch is empty: give at least one sample")
    return y.long(), {name: labels.long() for name, labels in attributes.items()}


def _check_enough(axis: str, parts: int, values: set[int], where: str) -> None:
    if len(values) < parts:
        plural = "classes" if axis == CLASS else f"{axis}s"
        raise MedicError(f"{parts} {axis} splits need {parts} {plural} or more, but {where} {len(values)}")


def _cut(cells: Sequence[Cell], axis: int, parts: Sequence[set[int]]) -> list[list[Cell]]:
    return [[cell for cell in cells if cell[axis] in part] for part in parts]


def _rows(tasks: Sequence[list[Cell]], present: set[Cell]) -> list[list[list[Cell]]]:
    """Group tasks into rows that differ in the last axis alone, dropping cells that no longer exist."""
    rows: dict[frozenset[Cell], list[list[Cell]]] = {}
    for task in tasks:
        kept = [cell for cell in task if cell in present]
        if kept:
            rows.setdefault(frozenset(cell[:-1] for cell in kept), []).append(kept)
    return list(rows.values())


def _shrunk(sizes: Sequence[int], tasks: int) -> list[int]:
    """Remove tasks from the largest steps, the last first, until `tasks` are left."""
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
