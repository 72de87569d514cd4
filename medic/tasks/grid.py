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
    """A mini-batch from some cells: the cells, and sample positions of shape (N,)."""

    cells: list[Cell]
    indices: Tensor


class Grid:
    """A partition of samples into tasks, and of tasks into steps. `GridSpec` describes the arguments.

    Pass `sampler` to use a sampler with different hyperparameters instead of the one named by `sampling`. If the
    `held_out` attribute is set to a domain, the last domain split consists of this domain alone.
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
        """Create a grid from a `GridSpec`, or from the arguments of `GridSpec`."""
        self.spec = domains if isinstance(domains, GridSpec) else GridSpec(domains, classes, steps, **options)
        self.sampler = sampler or SAMPLERS[self.spec.sampling]()
        self.generator = torch.Generator().manual_seed(seed)
        # Tasks to use instead of those from a split.
        self.chosen: list[list[Cell]] | None = None
        self.held_out: int | None = None
        self.names: Mapping[str, Sequence[str]] = {}  # label names by axis, for messages
        self._groups: list[tuple[int, ...]] = []
        self._draws = 0
        self._warned: set[str] = set()

    @property
    def tasks(self) -> int:
        """The number of tasks, t, in an iteration."""
        return self.spec.tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tasks in each step of an iteration."""
        return self.spec.sizes

    def __call__(self, x: Tensor, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> list[Step]:
        """Partition a batch into steps. Every sample is in exactly one task of one step.

        With `repeat`, the grid partitions the batch several times. A batch with too few domains or classes produces
        fewer tasks, and the grid warns once.
        """
        if self.spec.class_groups is not None:
            raise MedicError("class_groups requires a whole dataset, not a batch: use grid.index and grid.draw instead")
        if self.spec.sampling == "informative":
            raise MedicError("sampling 'informative' tries tasks on the model during training: use it with medic.train")
        attributes = attributes if domain is None else {"domain": domain, **attributes}
        y, attributes = _check_batch(x, y, attributes)
        cells = self._index(y, attributes)
        if CLASS in self.spec.splits and cells.keys and (lowest := min(cell[-1] for cell in cells.keys)) < 0:
            raise MedicError(f"cannot train on label {lowest}: remove unknown samples, as in x[y >= 0]")
        rounds = (self._steps(cells.keys) for _ in range(self.spec.repeat))
        steps = [[Task(task, cells.all(task)) for task in step] for steps in rounds for step in steps]
        self._check_observed()
        return [gather(tasks, x, y, attributes, index) for index, tasks in enumerate(steps)]

    def index(self, y: Tensor, domain: Tensor | None = None, **attributes: Tensor) -> Cells:
        """Group the samples in a dataset by their labels, and check that the dataset has enough labels for the grid."""
        cells = self._index(y, attributes if domain is None else {"domain": domain, **attributes})
        for axis, (name, parts) in enumerate(self.spec.splits.items()):
            _check_enough(name, parts, {cell[axis] for cell in cells.keys}, "the data has")
        if len(self.spec.splits) > 1:
            self._check_branches(cells)
        return cells

    def draw(self, cells: Cells, batch_size: int, ahead: int = 0) -> list[list[Task]]:
        """Draw the tasks for one iteration, grouped by step.

        Each task has `batch_size` samples, in equal parts from its cells. `ahead` is the number of iterations already
        drawn but not yet observed. Drawing ahead does not change the result.
        """
        steps = [step for _ in range(self.spec.repeat) for step in self._steps(cells.keys, ahead)]
        self._check_observed()
        return [[Task(task, self.sample(cells, task, batch_size)) for task in step] for step in steps]

    def sample(self, cells: Cells, task: Sequence[Cell], batch_size: int) -> Tensor:
        """Draw sample positions of shape (batch_size,) for a task.

        All cells contribute equally; the remainder comes from random cells.
        """
        count, extra = divmod(batch_size, len(task))
        with_extra = set(torch.randperm(len(task), generator=self.generator)[:extra].tolist())
        counts = [count + (position in with_extra) for position in range(len(task))]
        for cell, needed in zip(task, counts, strict=True):
            if cells.size(cell) < needed:
                labels = ", ".join(itertools.starmap(self._named, zip(self.spec.splits, cell, strict=True)))
                has = f"{labels or 'the data'} has {counted(cells.size(cell), 'sample')}"
                self._warn("short", f"{has}, but a task draws {needed}: some samples repeat")
        drawn = [cells.draw(cell, n, self.generator) for cell, n in zip(task, counts, strict=True) if n]
        return torch.cat(drawn)

    def probe(self, cells: Cells, batch_size: int) -> Task:
        """Draw a task from all cells, in equal parts, with as many samples as an iteration.

        As in the authors' code, the samples count towards the training epochs: an epoch does not train on samples drawn
        for a probe.
        """
        count = max(1, batch_size * self.tasks // len(cells.keys))
        return Task(list(cells.keys), torch.cat([cells.draw(cell, count, self.generator) for cell in cells.keys]))

    def candidates(self, cells: Cells, splits: int) -> list[list[Cell]]:
        """Return all tasks from several independent splits."""
        return [task for _ in range(splits) for row in self._split(cells.keys) for task in row if task]

    def observe(self, logits: Tensor, y: Tensor, domain: Tensor | None = None) -> None:
        """Pass closed-set logits of shape (N, C) to the sampler, with classes and domains of shape (N,)."""
        domains = 1 if domain is None else 1 + int(domain.max())
        summarise = softmax_sums if self.sampler.probes else self.sampler.summarise
        summary = summarise(logits, y, domain, domains)
        if summary is not None:
            self.sampler.observe(summary.cpu())

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generator and the sampler, the chosen tasks and the held-out domain."""
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
            raise MedicError(f"the grid splits axis {missing[0]!r}, but the samples lack it: pass {missing[0]}=…")
        labels = [self._grouped(known[axis]) if axis == CLASS else known[axis] for axis in self.spec.splits]
        return Cells(labels, len(y))

    def _check_branches(self, cells: Cells) -> None:
        """Check that every split of the first axis has enough labels on the last axis."""
        first, *_, last = self.spec.splits.items()
        labels_by_value: dict[int, set[int]] = {}
        for cell in cells.keys:
            labels_by_value.setdefault(cell[0], set()).add(cell[-1])
        # A split with several values has at least the labels of each value.
        if len(labels_by_value) // first[1] == 1:
            for value, labels in labels_by_value.items():
                _check_enough(*last, labels, f"{self._named(first[0], value)} has")

    def _grouped(self, y: Tensor) -> Tensor:
        """Replace classes with the index of their contiguous group, and store the groups."""
        if self.spec.class_groups is None:
            return y
        classes = y.unique().tolist()
        count = self.spec.class_groups
        if count > len(classes):
            raise MedicError(f"class_groups must be at most the number of classes, {len(classes)}, got {count}")
        self._groups = chunks(classes, count)
        group_of = {label: group for group, labels in enumerate(self._groups) for label in labels}
        return torch.tensor([group_of[label] for label in y.tolist()])

    def _steps(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """Return the tasks in every step as lists of cells. `ahead`: see `draw`."""
        if self.chosen is not None and (rows := _rows(self.chosen, set(cells))):
            return self._deal(rows)
        if self.spec.pairing != "diagonal":
            return self._deal(self._split(cells, ahead))
        for _ in range(100):
            split = self._split(cells, ahead)
            columns = len(split[0])  # fewer than the steps if the batch has fewer classes
            steps = [[row[(i + s) % columns] for i, row in enumerate(split)] for s in range(columns)]
            # A shared class split can miss all classes of a domain and leave a step empty: draw again.
            if all(any(step) for step in steps):
                break
        return [[task for task in step if task] for step in steps if any(step)]

    def _split(self, cells: Sequence[Cell], ahead: int = 0) -> list[list[list[Cell]]]:
        """Split all axes. Returns rows of tasks; the tasks of a row differ only on the last axis."""
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
        """Distribute the labels of `cells` on one axis over its splits."""
        name, count = list(self.spec.splits.items())[axis]
        values = sorted({cell[axis] for cell in cells})
        if len(values) < count:
            self._warn(name, f"a batch or domain has too few labels for {count} {name} splits: using {len(values)}")
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
        """Distribute tasks over the steps. The tasks of a row differ only on the last axis."""
        rows = [self._shuffled(row) for row in rows]
        # Rank by rank, so that tasks from the same row are as far apart as the step sizes allow.
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
        """Warn if a learning sampler still has no observations after more draws than training would make in advance."""
        self._draws += 1
        if (
            isinstance(self.sampler, Lagged)
            and self.spec.classes is not None
            and self.spec.pairing != "ordered"
            and not self.sampler.observed
            and self._draws > self.sampler.ahead + 10  # ten draws of tolerance
        ):
            self._warn(
                "unobserved",
                f"sampling {self.spec.sampling!r} learns from model outputs but received none in {self._draws} draws: "
                "call grid.observe(update.logits, update.y, update.domain) after each update",
            )

    def _named(self, axis: str, label: int) -> str:
        """Return a label on an axis with its name, for messages."""
        if axis == CLASS and self._groups:
            return f"class group {label}"
        return f"{axis} {self.names[axis][label]!r}" if axis in self.names else f"{axis} {label}"

    def _warn(self, kind: str, message: str) -> None:
        """Warn only once per kind of problem."""
        if kind not in self._warned:
            self._warned.add(kind)
            warn(message)


def _check_batch(x: Any, y: Any, attributes: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Check the types and lengths of a batch, and return classes and attributes as int64. Does not read any values."""
    if not isinstance(x, Tensor) or not x.ndim:
        raise MedicError(f"x must be a tensor of shape (samples, …), got {type(x).__name__}: use torch.stack(images)")
    for name, labels in ((CLASS, y), *attributes.items()):
        what = "y" if name == CLASS else name
        if not isinstance(labels, Tensor):
            first = labels[0] if isinstance(labels, list | tuple) and labels else None
            way = f"tensor([names.index(name) for name in {what}])" if isinstance(first, str) else f"as_tensor({what})"
            kind = type(labels).__name__ + (f" of names such as {first!r}" if isinstance(first, str) else "")
            raise MedicError(f"{what} must be a tensor of integers, one per sample, got {kind}: use torch.{way}")
        if labels.ndim != 1 or len(labels) != len(x):
            hint = f"; for one-hot labels use {what}.argmax(1)" if labels.ndim == 2 and labels.shape[1] > 1 else ""
            raise MedicError(
                f"{what} must hold one integer per input, shape ({len(x)},), got shape {tuple(labels.shape)}{hint}"
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise MedicError(f"{what} must hold integers, got {labels.dtype}: use {what}.long()")
    if not len(x):
        raise MedicError("the batch is empty: pass at least one sample")
    return y.long(), {name: labels.long() for name, labels in attributes.items()}


def _check_enough(axis: str, parts: int, values: set[int], where: str) -> None:
    if len(values) < parts:
        plural = "classes" if axis == CLASS else f"{axis}s"
        raise MedicError(f"{parts} {axis} splits require at least {parts} {plural}, but {where} {len(values)}")


def _cut(cells: Sequence[Cell], axis: int, parts: Sequence[set[int]]) -> list[list[Cell]]:
    return [[cell for cell in cells if cell[axis] in part] for part in parts]


def _rows(tasks: Sequence[list[Cell]], present: set[Cell]) -> list[list[list[Cell]]]:
    """Group tasks that differ only on the last axis into rows, and drop cells that no longer exist."""
    rows: dict[frozenset[Cell], list[list[Cell]]] = {}
    for task in tasks:
        kept = [cell for cell in task if cell in present]
        if kept:
            rows.setdefault(frozenset(cell[:-1] for cell in kept), []).append(kept)
    return list(rows.values())


def _shrunk(sizes: Sequence[int], tasks: int) -> list[int]:
    """Shrink the largest steps, the last one first, until `tasks` tasks are left."""
    shrunk = list(sizes)
    while sum(shrunk) > tasks:
        largest = max(range(len(shrunk)), key=lambda step: (shrunk[step], step))
        shrunk[largest] -= 1
    return [size for size in shrunk if size]


def gather(tasks: Sequence[Task], x: Tensor, y: Tensor, attributes: Mapping[str, Tensor], index: int = 0) -> Step:
    """Combine the samples of several tasks into one step."""
    indices = torch.cat([task.indices for task in tasks])
    taken = {name: labels[indices.to(labels.device)] for name, labels in attributes.items()}
    sizes = tuple(len(task.indices) for task in tasks)
    return Step(x[indices.to(x.device)], y[indices.to(y.device)], sizes, taken, index=index)
