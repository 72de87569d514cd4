"""Decisions on images, taken apart: by class, by confusion, and by any group of images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from medic import openset
from medic.errors import check_choice
from medic.openset.metrics import UNKNOWN


@dataclass(frozen=True)
class Decisions:
    """N images: position of the true class, of the class they are taken for, and confidence, all (N,).

    Known classes come first, by label; unknown ones follow, by name. An image that is taken for no known class has the
    number of classes as its prediction, which equals no label. A NaN is never accepted, like −inf.
    """

    classes: list[str]
    known: int
    label: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    threshold: float | None = None
    """Images of a lower confidence are rejected; None accepts all."""
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Texts (N,) by name, to group images by; `class` always works."""

    @classmethod
    def named(
        cls,
        known: list[str],
        names: NDArray[np.str_],
        label: NDArray[np.int64],
        predicted: NDArray[np.int64],
        confidence: NDArray[np.floating],
        threshold: float | None = None,
        columns: Mapping[str, NDArray[np.str_]] | None = None,
    ) -> "Decisions":
        """Number the unknown classes, whose label is −1, by the names (N,) of the true classes.

        A prediction of −1 is no known class.
        """
        unknown = sorted(set(names[label < 0].tolist()), key=str.casefold)
        place = {name: len(known) + number for number, name in enumerate(unknown)}
        index = [k if k >= 0 else place[name] for k, name in zip(label.tolist(), names.tolist(), strict=True)]
        filled = np.where(np.isnan(confidence), -np.inf, confidence.astype(np.float64))
        numbers = np.array(index, dtype=np.int64)
        classes = [*known, *unknown]
        taken = np.where(predicted < 0, len(classes), predicted)
        return cls(classes, len(known), numbers, taken, filled, threshold, columns or {})

    def where(self, mask: NDArray[np.bool_]) -> "Decisions":
        """Return the images that a mask (N,) selects."""
        arrays = (self.label[mask], self.predicted[mask], self.confidence[mask])
        columns = {name: values[mask] for name, values in self.columns.items()}
        return Decisions(self.classes, self.known, *arrays, self.threshold, columns)

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether the true class of each image (N,) is known."""
        return self.label < self.known

    @property
    def named_right(self) -> NDArray[np.bool_]:
        """Whether each image (N,) is of the known class that it is taken for."""
        return np.asarray(self.label == self.predicted)

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each image (N,) reaches the threshold."""
        return np.full(len(self.label), True) if self.threshold is None else self.confidence >= self.threshold

    def metrics(self) -> dict[str, float]:
        """Return every metric: acc if an image is known, those of a ranking if others are unknown, or acc_u alone."""
        unknown = np.where(self.is_known, self.label, UNKNOWN)
        known = int(self.is_known.sum())
        if not known:
            return {} if self.threshold is None else {"acc_u": float((~self.accepted).mean())}
        if known == len(self.label):
            metrics = {"acc": float(self.named_right.mean())}
            return metrics if self.threshold is None else {**metrics, "acc_k": float(self._correct.mean())}
        own = self.confidence, self.predicted, unknown
        ranked = openset.evaluate(*own)
        if self.threshold is None:
            return ranked
        return {"acc": ranked.pop("acc"), **openset.hscore(*own, self.threshold)._asdict(), **ranked}

    @property
    def _correct(self) -> NDArray[np.bool_]:
        """Whether each decision (N,) is right: a known image is accepted and named, an unknown one is rejected."""
        return np.where(self.is_known, self.named_right & self.accepted, ~self.accepted)

    def by_class(self) -> "list[ClassResult]":
        """Return a result per class with images: known classes, then unknown ones, the worst first in each."""
        counts = pair_counts(self.label, self.predicted, len(self.classes), self.known)
        results = []
        for k in np.unique(self.label).tolist():
            own, rows = counts[k], self.label == k
            known, images = k < self.known, int(rows.sum())
            rejected = None if self.threshold is None else float((~self.accepted[rows]).mean())
            others = np.where(np.arange(self.known) == k, 0, own)
            taken = int(others.argmax())
            results.append(
                ClassResult(
                    self.classes[k],
                    known,
                    images,
                    float(self.named_right[rows].mean()) if known else None,
                    float(self._correct[rows].mean()) if known and rejected is not None else None,
                    rejected,
                    self.classes[taken] if others[taken] else None,
                    int(others[taken]) / images,
                )
            )
        return sorted(results, key=lambda one: (not one.known, one.rate))

    def confusions(self) -> "list[Confused]":
        """Return the pairs of a true class and another class that accepted images are taken for, the largest first."""
        rows = self.accepted
        counts = pair_counts(self.label[rows], self.predicted[rows], len(self.classes), self.known)
        images = np.bincount(self.label, minlength=len(self.classes))
        pairs = [
            Confused(self.classes[i], self.classes[j], i < self.known, int(counts[i, j]), int(images[i]))
            for i, j in np.argwhere(counts).tolist()
            if i != j
        ]
        return sorted(pairs, key=lambda one: (-one.images, -one.share, one.true, one.taken_for))

    def by(self, column: str) -> "list[GroupResult]":
        """Return a result per value of a column, the worst first.

        The order is that of the H-score if every group has one. Otherwise it is that of the upper end of the interval,
        so that no group of few images is first by chance.
        """
        columns = {"class": np.array(self.classes)[self.label], **self.columns}
        values = columns[check_choice("column", column, columns, "to group by")]
        results = []
        for value in np.unique(values).tolist():
            group = self.where(values == value)
            right = group._correct if group.threshold is not None else group.named_right[group.is_known]
            correct = float(right.mean()) if len(right) else math.nan
            counts = int(group.is_known.sum()), int((~group.is_known).sum())
            results.append(GroupResult(value, *counts, correct, *wilson(correct, len(right)), group.metrics()))
        ranked = all("hscore" in one.metrics for one in results)
        return sorted(results, key=lambda one: (one.metrics["hscore"] if ranked else one.high, one.correct, one.group))


class ClassResult(NamedTuple):
    """The images of one true class; rates are shares of them."""

    name: str
    known: bool
    images: int
    acc: float | None
    """The share that is named correctly if none is rejected; None for an unknown class."""
    acc_k: float | None
    """The share that is accepted and named correctly; None for an unknown class or without a threshold."""
    rejected: float | None
    """The share below the threshold; None without a threshold."""
    taken_for: str | None
    """The other class that most are taken for, whether they are rejected or not."""
    share: float
    """The share that is taken for it."""

    @property
    def rate(self) -> float:
        """The share that should be large: the accuracy, or the rejected images of an unknown class."""
        return (self.acc if self.known else self.rejected) or 0.0


class Confused(NamedTuple):
    """Accepted images of a class that are taken for another."""

    true: str
    taken_for: str
    known: bool
    images: int
    of: int

    @property
    def share(self) -> float:
        """The share of the images of the true class."""
        return self.images / self.of


class GroupResult(NamedTuple):
    """The images of one group."""

    group: str
    known: int
    unknown: int
    correct: float
    """The share of right decisions; without a threshold, the accuracy on known images."""
    low: float
    high: float
    metrics: Mapping[str, float]


def pair_counts(label: NDArray[np.int64], taken: NDArray[np.int64], rows: int, columns: int) -> NDArray[np.int64]:
    """Return the number of images of class i that are taken for class j (rows, columns), without images of larger j."""
    counted = taken < columns
    label, taken = label[counted], taken[counted]
    return np.bincount(label * columns + taken, minlength=rows * columns).reshape(rows, columns)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` images by Wilson's formula; from 0 to 1 without any."""
    from scipy.stats import binomtest  # which takes a second to import

    if not count:
        return 0.0, 1.0
    interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
