"""The confusion that adaptive sampling used in a run, and the chains of classes that it drew.

Training is repeated from the run's settings, and every split of the classes is recorded. Classes are neighbours if they
follow each other in the chain; dealing the chain over the tasks puts neighbours into different ones, whose
gradients are matched if they are in different steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.load import repeated
from medic.analysis.result import Result, number, percent
from medic.errors import MedicError
from medic.runs.run import Run
from medic.tasks.lagged import Domains, Groups, Sampler, Split
from medic.tasks.samplers import Adaptive

Floats = NDArray[np.float64]
MAX_LISTED = 10
"""Pairs of classes in the printed table."""


@dataclass(frozen=True)
class Tasks(Result):
    """Confusion and co-occurrence of C classes over the splits of a run."""

    label: str
    run: str
    classes: tuple[str, ...]
    iterations: int
    splits: int
    """Splits that had a confusion to use."""
    confusion: Floats
    """The mean of p(j | i) (C, C) that the splits used, row i the true class."""
    neighbours: Floats
    """How often classes i and j were neighbours in the chain, of the splits with both (C, C)."""
    apart: Floats
    """How often they were in different tasks, of the splits with both (C, C)."""
    chance_neighbours: float
    """The same for a random chain."""
    chance_apart: float
    """The same for a random chain."""
    correlation: float
    """Spearman's rank correlation between the symmetric confusion and `neighbours` over pairs of classes."""

    def rows(self) -> list[dict[str, str]]:
        """Return the most confused pairs of classes."""
        taken = (self.confusion + self.confusion.T) / 2
        first, second = np.triu_indices(len(self.classes), 1)
        order = np.argsort(-taken[first, second], kind="stable")[:MAX_LISTED]
        return [
            {
                "classes": f"{self.classes[i]} – {self.classes[j]}",
                "confusion %": percent(float(taken[i, j])),
                "neighbours %": percent(float(self.neighbours[i, j])),
                "in different tasks %": percent(float(self.apart[i, j])),
            }
            for i, j in zip(first[order], second[order], strict=True)
        ]

    def notes(self) -> list[str]:
        """Report that training was repeated, and what chance would give."""
        return [
            f"training of {self.label} was repeated for {self.iterations} iterations: {self.splits} splits of classes",
            f"at random, classes are neighbours in {percent(self.chance_neighbours)} % of the splits and in different "
            f"tasks in {percent(self.chance_apart)} %; rank correlation of confusion and neighbours "
            f"{number(self.correlation)}",
        ]


@dataclass
class Record:
    """Sums over the splits of C classes."""

    classes: int
    splits: int = 0
    confusion: Floats = field(init=False)
    both: Floats = field(init=False)
    neighbours: Floats = field(init=False)
    apart: Floats = field(init=False)
    chance: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = (self.classes, self.classes)
        self.confusion, self.both, self.neighbours, self.apart = (np.zeros(shape) for _ in range(4))

    def add(self, confusion: Floats, groups: Groups, dealt: Split) -> None:
        """Add a split of groups of classes that was dealt round-robin from a chain, by this confusion (C, C)."""
        position, task = np.full(self.classes, -1), np.full(self.classes, -1)
        for part, units in enumerate(dealt):
            for rank, unit in enumerate(units):
                for label in groups[unit]:
                    position[label], task[label] = rank * len(dealt) + part, part
        both = np.outer(task >= 0, task >= 0)
        self.splits += 1
        self.confusion += confusion
        self.both += both
        self.neighbours += both & (np.abs(position[:, None] - position) == 1)
        self.apart += both & (task[:, None] != task)
        self.chance.append(chances([len(units) for units in dealt]))


def chances(sizes: Sequence[int]) -> tuple[float, float]:
    """Return the chance of two of Σ sizes units to be neighbours in a random chain, and to be in different tasks.

    >>> chances([2, 2, 2])
    (0.3333333333333333, 0.8)
    """
    count = sum(sizes)
    if count < 2:
        return float("nan"), float("nan")
    return 2 / count, 1 - sum(size * (size - 1) for size in sizes) / (count * (count - 1))


class Recording:
    """A sampler that records its splits and is otherwise the one it wraps."""

    def __init__(self, sampler: Adaptive, record: Record) -> None:
        self._sampler, self._record = sampler, record

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Split as the wrapped sampler, and record the split if there is a confusion."""
        confusion = self._sampler.confusion(domains, ahead)
        dealt = self._sampler.split(domains, groups, parts, generator, ahead)
        if confusion is not None:
            self._record.add(confusion.numpy(), groups, dealt)
        return dealt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def measure(run: Run, iterations: int | None = None, root: str | None = None, device: str = "auto") -> Tasks:
    """Repeat the training of a run that samples adaptively, and record its splits."""
    from scipy.stats import spearmanr

    names = run.classes
    record = Record(len(names))
    with repeated(run, root, device) as training:
        sampler = training.trainer.grid.sampler
        if not isinstance(sampler, Adaptive) or type(sampler).deal is not Adaptive.deal:
            raise MedicError(
                f"run {run.path} samples classes by {run.config.tasks.sampling!r}, without a chain that is dealt over "
                "tasks: give a run of --method medic++ with --sampling adaptive or probe"
            )
        training.trainer.grid.sampler = cast(Sampler, Recording(sampler, record))
        last = max(training.iterate(iterations), default=0)
    if not record.splits:
        raise MedicError(f"no split of run {run.path} had a confusion yet: repeat more of it with --iterations")
    with np.errstate(invalid="ignore"):
        neighbours, apart = record.neighbours / record.both, record.apart / record.both
    confusion = record.confusion / record.splits
    first, second = np.triu_indices(len(names), 1)
    taken = ((confusion + confusion.T) / 2)[first, second]
    seen = ~np.isnan(neighbours[first, second])
    correlation = float(spearmanr(taken[seen], neighbours[first, second][seen])[0]) if seen.sum() > 2 else float("nan")
    chance = np.nanmean(np.array(record.chance), axis=0)
    return Tasks(
        run.config.run.method, str(run.path), tuple(names), last, record.splits, confusion, neighbours, apart,
        float(chance[0]), float(chance[1]), correlation,
    )  # fmt: skip


@style.styled
def draw(result: Tasks) -> Figure:
    """Draw the confusion, and how often pairs of classes were neighbours and apart against it."""
    figure = style.new_figure(2.5)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    percentages = 100 * result.confusion.copy()
    np.fill_diagonal(percentages, np.nan)
    image = left.imshow(percentages, cmap=style.SEQUENTIAL)
    few = len(result.classes) <= 12
    left.set_xticks(range(len(result.classes)) if few else [], result.classes if few else [], rotation=90)
    left.set_yticks(range(len(result.classes)) if few else [], result.classes if few else [])
    left.set_ylabel("true class")
    left.spines[:].set_visible(False)
    figure.colorbar(image, ax=left, location="bottom", label="taken for, in %")
    style.letter(left, 0, "confusion used")
    first, second = np.triu_indices(len(result.classes), 1)
    taken = 100 * ((result.confusion + result.confusion.T) / 2)[first, second]
    parts = (
        ("neighbours", result.neighbours, style.FIXED["medic++"], "o", result.chance_neighbours),
        ("in different tasks", result.apart, style.PALETTE[0], "^", result.chance_apart),
    )
    for name, matrix, colour, marker, chance in parts:
        right.scatter(taken, 100 * matrix[first, second], s=9, color=colour, marker=marker, label=name, linewidths=0)
        right.axhline(100 * chance, color=colour, linestyle=":", linewidth=0.8)
    right.set_xlabel("confusion in %")
    right.set_ylabel("% of splits")
    right.set_ylim(0, 105)
    style.letter(right, 1, "pairs of classes (dotted: chance)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, columnspacing=1)
    return figure
