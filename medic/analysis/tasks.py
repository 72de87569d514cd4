"""Class confusion used by a run's adaptive sampling, and the class chains drawn from it.

The analysis replays training from the run's settings, and records every class split. Two classes are neighbours if they
are adjacent in the chain. Dealing the chain round-robin puts neighbours into different tasks. Their gradients are
matched if these tasks are in different steps.
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
"""Maximum number of class pairs in the printed table."""


@dataclass(frozen=True)
class Tasks(Result):
    """Confusion and co-occurrence of C classes over a run's class splits."""

    label: str
    run: str
    classes: tuple[str, ...]
    iterations: int
    splits: int
    """Number of splits for which a confusion matrix was available."""
    confusion: Floats
    """Mean of p(j | i) over the splits, of shape (C, C). Row i is the true class."""
    neighbours: Floats
    """Fraction of splits in which classes i and j were neighbours, of shape (C, C). Only counts splits with both."""
    apart: Floats
    """Fraction of splits in which classes i and j were in different tasks, of shape (C, C)."""
    chance_neighbours: float
    """Expected value of `neighbours` for a random chain."""
    chance_apart: float
    """Expected value of `apart` for a random chain."""
    correlation: float
    """Spearman's rank correlation between symmetric confusion and `neighbours` over class pairs."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row for each of the most confused class pairs."""
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
        """Report the replayed training, and the values expected by chance."""
        return [
            f"training of {self.label} was replayed for {self.iterations} iterations, with {self.splits} class splits",
            f"by chance, two classes are neighbours in {percent(self.chance_neighbours)}% of the splits and in "
            f"different tasks in {percent(self.chance_apart)}%; rank correlation between confusion and neighbours: "
            f"{number(self.correlation)}",
        ]


@dataclass
class Record:
    """Running sums over class splits."""

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
        """Add a split of class groups, dealt round-robin from a chain, and its confusion matrix, of shape (C, C)."""
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
    """Return the probabilities that two units are neighbours in a random chain, and that they are in different tasks.

    `sizes` contains the number of units in each task.

    >>> chances([2, 2, 2])
    (0.3333333333333333, 0.8)
    """
    count = sum(sizes)
    if count < 2:
        return float("nan"), float("nan")
    return 2 / count, 1 - sum(size * (size - 1) for size in sizes) / (count * (count - 1))


class Recording:
    """A wrapper that records the splits of a sampler."""

    def __init__(self, sampler: Adaptive, record: Record) -> None:
        self._sampler, self._record = sampler, record

    def split(self, domains: Domains, groups: Groups, parts: int, generator: torch.Generator, ahead: int = 0) -> Split:
        """Split with the wrapped sampler, and record the split if a confusion matrix is available."""
        confusion = self._sampler.confusion(domains, ahead)
        dealt = self._sampler.split(domains, groups, parts, generator, ahead)
        if confusion is not None:
            self._record.add(confusion.numpy(), groups, dealt)
        return dealt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def measure(run: Run, iterations: int | None = None, root: str | None = None, device: str = "auto") -> Tasks:
    """Replay the training of a run with adaptive sampling, and record its splits."""
    from scipy.stats import spearmanr

    names = run.classes
    record = Record(len(names))
    with repeated(run, root, device) as training:
        sampler = training.trainer.grid.sampler
        if not isinstance(sampler, Adaptive) or type(sampler).deal is not Adaptive.deal:
            raise MedicError(
                f"run {run.path} uses sampling {run.config.tasks.sampling!r}, which draws no class chains: "
                "pass a run of --method medic++ with --sampling adaptive or probe"
            )
        training.trainer.grid.sampler = cast(Sampler, Recording(sampler, record))
        last = max(training.iterate(iterations), default=0)
    if not record.splits:
        raise MedicError(f"run {run.path} measured no confusion in the replayed iterations: increase --iterations")
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
    """Draw the confusion, and how often class pairs were neighbours or apart as a function of confusion."""
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
    figure.colorbar(image, ax=left, location="bottom", label="share of the true class in %")
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
    style.letter(right, 1, "class pairs (dotted: chance)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, columnspacing=1)
    return figure
