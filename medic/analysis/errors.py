"""Errors that more data could fix: classes confused in the target, and unknown classes mistaken for known classes.

The predicted class is the one with the largest closed-set output, even if the image is then rejected. Target images of
known classes are compared with validation images of the source domains. A confusion that occurs only in the target is
due to the domain. A confusion is listed only if its rate exceeds that in the source domains by more than two standard
errors. Unknown target classes are compared with the same classes in the source domains, if available.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medic import openset
from medic.analysis import style
from medic.analysis.load import labels_of
from medic.analysis.result import Result, percent
from medic.errors import counted
from medic.evaluation.decisions import pair_counts
from medic.runs.run import Run

Floats = NDArray[np.float64]
MAX_LISTED = 10
"""Maximum number of class pairs, and of unknown classes, in the printed table and the figure."""


@dataclass(frozen=True)
class Confusion:
    """Images of one known class that are classified as another."""

    true: str
    taken_for: str
    target: float
    """Fraction of the true class's target images that are classified as the other class."""
    source: float
    """The same fraction of the true class's validation images, or NaN without such images."""
    images: int
    """Number of target images that are classified as the other class."""
    of: int
    """Number of target images of the true class."""
    source_of: int
    """Number of validation images of the true class."""

    @property
    def excess(self) -> float:
        """Fraction in the target minus the fraction in the source domains, which is treated as 0 if unavailable."""
        return self.target - (0.0 if np.isnan(self.source) else self.source)

    @property
    def significant(self) -> bool:
        """Whether the excess is larger than two standard errors."""
        shares = ((self.target, self.of), (self.source, self.source_of))
        return self.excess > 2 * math.sqrt(sum(_variance(share, images) for share, images in shares if images))


def _variance(share: float, images: int) -> float:
    """Return the variance of a fraction measured on `images` images. It is never 0, even for fractions of 0 and 1."""
    return max(share * (1 - share), 1 / images) / images


@dataclass(frozen=True)
class UnknownClass:
    """The target images of one unknown class."""

    name: str
    looks_like: str
    """The known class that the images are most often classified as."""
    share: float
    """Fraction of images classified as `looks_like`."""
    accepted: float
    """Fraction of images accepted at the run's threshold."""
    accepted_in_sources: float
    """The same fraction for source-domain images of the class, or NaN without such images."""
    images: int


@dataclass(frozen=True)
class Errors(Result):
    """The confusions of a run, sorted by excess, and its unknown classes, sorted by acceptance rate."""

    label: str
    method: str
    run: str
    targets: tuple[str, ...]
    confusions: tuple[Confusion, ...]
    unknown: tuple[UnknownClass, ...]

    @property
    def largest_significant(self) -> tuple[Confusion, ...]:
        """The significant confusions with the largest excess."""
        return tuple(one for one in self.confusions if one.significant)[:MAX_LISTED]

    def rows(self) -> list[dict[str, str]]:
        """Return the largest significant confusions, then the most accepted unknown classes."""
        confused = [
            {
                "class": one.true,
                "kind": "known",
                "taken for": one.taken_for,
                "in target %": percent(one.target),
                "in sources %": percent(one.source),
                "accepted %": "",
                "accepted in sources %": "",
                "images": f"{one.images} of {one.of}",
            }
            for one in self.largest_significant
        ]
        return confused + [
            {
                "class": one.name,
                "kind": "unknown",
                "taken for": one.looks_like,
                "in target %": percent(one.share),
                "in sources %": "",
                "accepted %": percent(one.accepted),
                "accepted in sources %": percent(one.accepted_in_sources),
                "images": str(one.images),
            }
            for one in self.unknown[:MAX_LISTED]
        ]

    def notes(self) -> list[str]:
        """Explain the columns, and what the table leaves out."""
        place = f"{self.label}, target {', '.join(self.targets)}"
        lines = []
        if self.largest_significant or self.unknown:
            lines.append(
                f"{place}: percentages of each class's images; taken for: most likely known class before rejection; "
                "sources: validation images; accepted: not rejected at the run's threshold"
            )
        if not self.largest_significant:
            lines.append(
                f"{place}: no known class is confused with another significantly more often than in the sources"
            )
        if not self.unknown:
            lines.append(f"{place}: the target has no unknown classes")
        if within := sum(one.excess > 0 and not one.significant for one in self.confusions):
            lines.append(
                f"{counted(within, 'confusion')} between known classes not listed: "
                "at most two standard errors more frequent than in the sources"
            )
        return lines


def measure(run: Run) -> Errors:
    """Count the errors in the predictions of a finished run."""
    names, classes, arrays = run.classes, run.true_classes, run.predictions
    taken = np.empty(len(arrays["label"]), dtype=np.int64)
    for split in run.splits:
        taken[arrays["split"] == split] = openset.predicted_class(run.outputs(split).output).numpy()
    rates, counts = zip(*(
        confusion_rates(arrays["label"][rows], taken[rows], len(names))
        for rows in (arrays["split"] == "target", arrays["split"] == "validation")
    ), strict=True)  # fmt: skip
    confusions = [
        Confusion(
            names[i], names[j], float(rates[0][i, j]), float(rates[1][i, j]),
            round(float(rates[0][i, j]) * int(counts[0][i])), int(counts[0][i]), int(counts[1][i]),
        )
        for i in range(len(names))
        for j in range(len(names))
        if i != j and rates[0][i, j] > 0
    ]  # fmt: skip
    confusions.sort(key=lambda one: (-one.excess, one.true, one.taken_for))
    accepted = arrays["prediction"] >= 0
    unknown = arrays["label"] < 0
    in_target, in_sources = (arrays["split"] == split for split in ("target", "source-unknown"))
    unknown_classes = []
    for name in sorted(set(classes[unknown & in_target].tolist())):
        rows = unknown & in_target & (classes == name)
        known = np.bincount(taken[rows], minlength=len(names))
        beside = in_sources & (classes == name)
        unknown_classes.append(
            UnknownClass(
                name,
                names[int(known.argmax())],
                float(known.max() / rows.sum()),
                float(accepted[rows].mean()),
                float(accepted[beside].mean()) if beside.any() else float("nan"),
                int(rows.sum()),
            )
        )
    unknown_classes.sort(key=lambda one: (-one.accepted, one.name))
    label, method = labels_of([run])[0], run.config.run.method
    return Errors(
        label, method, str(run.path), tuple(run.config.data.target), tuple(confusions), tuple(unknown_classes)
    )


def confusion_rates(
    label: NDArray[np.int64], taken: NDArray[np.int64], classes: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Return the confusion matrix as row fractions, of shape (C, C), and the number of images per class, of shape (C,).

    Rows are true classes. Rows of classes without images are NaN. Images with label −1 are ignored.
    """
    known = label >= 0
    counts = np.bincount(label[known], minlength=classes)
    pairs = pair_counts(label[known], taken[known], classes, classes)
    with np.errstate(invalid="ignore"):
        return pairs / counts[:, None].astype(float), counts


@style.styled
def draw(result: Errors) -> Figure:
    """Draw the largest significant confusions, and the most accepted unknown classes."""
    confused = result.largest_significant
    unknown = result.unknown[:MAX_LISTED]
    rows = (max(1, len(confused)), max(1, len(unknown)))
    figure = style.new_figure(0.21 * sum(rows) + 1.5)
    top, bottom = figure.subplots(2, 1, height_ratios=rows)
    pairs = [(f"{one.true} → {one.taken_for}", one.target, one.source) for one in confused]
    _bars(top, pairs)
    style.letter(top, 0, f"known classes confused in {', '.join(result.targets)}")
    _bars(bottom, [(f"{one.name} (like {one.looks_like})", one.accepted, one.accepted_in_sources) for one in unknown])
    style.letter(bottom, 1, "accepted unknown classes")
    bottom.set_xlabel("% of the class's images")
    figure.legend(*top.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


def _bars(axes: Axes, rows: Sequence[tuple[str, float, float]]) -> None:
    """Draw a bar for the target and a mark for the source domains in every row."""
    places = np.arange(len(rows))
    axes.barh(places, [100 * target for _, target, _ in rows], 0.7, color=style.WRONG, label="target")
    marks = [100 * source for _, _, source in rows]
    axes.plot(marks, places, "|", color="black", markersize=7, markeredgewidth=1.5, label="sources")
    axes.set_yticks(places, [name for name, _, _ in rows])
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    if not rows:
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
