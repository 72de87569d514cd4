"""Standardised mean differences between classes, and matched task pairs against the number of steps.

The difference between classes i and j is Cohen's d, averaged over features f:

    d_ij = mean_f |μ_if − μ_jf| / sqrt((σ_if² + σ_jf²) / 2)

σ² is the sample variance (N − 1). Features that vary in neither class are ignored. The paper shows this matrix for
MEDIC++ with nine tasks in 1, 3 and 9 steps, but states neither the formula nor the images. By default, this analysis
uses validation images of the source domains, which excludes the effect of domain shift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.load import labels_of, with_features
from medic.analysis.result import Result, mean_of, number
from medic.errors import MedicError
from medic.objectives.objective import features_of
from medic.runs.run import Run
from medic.tasks.partition import matched_pairs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassDifferences:
    """Differences between the C classes of a run."""

    label: str
    run: str
    steps: int
    classes: tuple[str, ...]
    differences: Floats
    """Cohen's d, a symmetric array of shape (C, C) with a zero diagonal. NaN for classes with fewer than two images."""
    mean: float
    """Mean over class pairs."""
    least: float
    """Minimum over class pairs."""
    accuracy: float
    """Fraction of known images in the split that are classified correctly."""


@dataclass(frozen=True)
class Separation(Result):
    """Class differences of several runs, and matched task pairs for t tasks in n = 1, …, t steps."""

    runs: tuple[ClassDifferences, ...]
    split: str
    tasks: int
    matched: tuple[int, ...]
    """Number of matched pairs for n = 1, …, t, the paper's t_n."""
    estimate: tuple[float, ...]
    """Approximate number of matched pairs, the paper's f(n) = t²/2 (1 − 1/n)."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row per run."""
        return [
            {
                "run": one.label,
                "steps": str(one.steps),
                "matched pairs": str(self.matched[one.steps - 1]) if one.steps <= self.tasks else "–",
                "mean difference": number(one.mean, 3),
                "least difference": number(one.least, 3),
                f"Acc {self.split}": number(100 * one.accuracy, 1),
            }
            for one in self.runs
        ]

    def notes(self) -> list[str]:
        """Describe the differences and the images."""
        return [f"difference: Cohen's d between two known classes, averaged over features; images: {self.split}"]


def measure(
    runs: Sequence[Run],
    split: str = "validation",
    rerun: bool = False,
    root: str | None = None,
    device: str = "auto",
) -> Separation:
    """Measure the class differences of every run, and count the matched pairs for the runs' number of tasks."""
    run_differences, tasks = [], 1
    ordered = sorted(runs, key=lambda run: len(run.config.tasks.steps or [1]))
    for run, label in zip(ordered, labels_of(ordered), strict=True):
        output, y, _ = with_features(run, split, rerun, root, device)
        known, names = y >= 0, run.classes
        if not known.any():
            raise MedicError(f"split {split!r} of run {run.path} contains no known classes: use --split validation")
        differences = class_differences(features_of(output)[known].double().numpy(), y[known].numpy(), len(names))
        pairs = differences[np.triu_indices(len(names), 1)]
        accuracy = float((output.logits.argmax(1) == y)[known].double().mean())
        steps = [int(size) for size in run.config.tasks.steps or [1]]
        tasks = max(tasks, sum(steps))
        run_differences.append(
            ClassDifferences(
                label,
                str(run.path),
                len(steps),
                tuple(names),
                differences,
                mean_of(pairs),
                float(np.nanmin(pairs)) if not np.isnan(pairs).all() else float("nan"),
                accuracy,
            )
        )
    matched = [matched_pairs(tasks, steps) for steps in range(1, tasks + 1)]
    return Separation(
        tuple(run_differences),
        split,
        tasks,
        tuple(one.exact for one in matched),
        tuple(one.estimate for one in matched),
    )


def class_differences(features: Floats, label: NDArray[np.int64], classes: int) -> Floats:
    """Return Cohen's d between classes, averaged over features, of shape (C, C).

    `features` has shape (N, F), and `label` has shape (N,).
    """
    differences = np.zeros((classes, classes))
    groups = [features[label == one] for one in range(classes)]
    means = [group.mean(0) if len(group) else np.zeros(features.shape[1]) for group in groups]
    variances = [group.var(0, ddof=1) if len(group) > 1 else np.full(features.shape[1], np.nan) for group in groups]
    for i in range(classes):
        for j in range(i):
            pooled = np.sqrt((variances[i] + variances[j]) / 2)
            varies = pooled > 0
            difference = np.abs(means[i] - means[j])[varies] / pooled[varies]
            differences[i, j] = differences[j, i] = difference.mean() if varies.any() else np.nan
    return differences


@style.styled
def draw(result: Separation) -> Figure:
    """Draw one matrix per run, with warmer colours for larger differences, and t_n against n."""
    panels = len(result.runs) + 1
    figure = style.new_figure(1.9 * -(-panels // 2))
    grid = figure.subplots(-(-panels // 2), 2, squeeze=False).flatten()
    top = max(float(np.nanmax(one.differences)) for one in result.runs)
    image = None
    for index, (axes, one) in enumerate(zip(grid, result.runs, strict=False)):
        image = axes.imshow(one.differences, cmap=style.SEQUENTIAL, vmin=0, vmax=top)
        few = len(one.classes) <= 12
        axes.set_xticks(range(len(one.classes)) if few else [], one.classes if few else [], rotation=90)
        axes.set_yticks(range(len(one.classes)) if few else [], one.classes if few else [])
        axes.spines[:].set_visible(False)
        style.letter(axes, index, f"{one.label}, mean\N{NO-BREAK SPACE}{one.mean:.2f}")
    if image is not None:
        figure.colorbar(image, ax=list(grid[: panels - 1]), shrink=0.7, label="Cohen's d", location="bottom")
    axes = grid[panels - 1]
    steps = range(1, result.tasks + 1)
    axes.plot(steps, result.estimate, color=style.FIXED["erm"], label="$f(n)$", linewidth=1)
    axes.plot(steps, result.matched, "o", color=style.FIXED["medic++"], label="$t_n$")
    axes.set_xlabel("steps n")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("matched pairs")
    axes.legend(loc="lower right")
    style.letter(axes, panels - 1, f"{result.tasks} tasks")
    for unused in grid[panels:]:
        unused.set_visible(False)
    return figure
