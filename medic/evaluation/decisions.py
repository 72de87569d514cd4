"""Decisions on images, broken down by class, by confusion, and by any group of images."""

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
    """True classes, predicted classes and confidences of N images, each of shape (N,).

    `classes` lists the known classes in label order, followed by the unknown classes in alphabetical order. If no known
    class is predicted, the prediction is `len(classes)`, which never equals a label. NaN confidences are treated as
    −inf.
    """

    classes: list[str]
    known: int
    label: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    threshold: float | None = None
    """Confidence below which images are rejected; None accepts all images."""
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """String arrays of shape (N,) by name, for grouping images; `class` is always available."""

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
        """Create decisions from labels in which −1 means unknown; `names` are the true class names, of shape (N,).

        A prediction of −1 means that no known class is predicted.
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
        """Return the images selected by a mask of shape (N,)."""
        arrays = (self.label[mask], self.predicted[mask], self.confidence[mask])
        columns = {name: values[mask] for name, values in self.columns.items()}
        return Decisions(self.classes, self.known, *arrays, self.threshold, columns)

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether each image's true class is known, of shape (N,)."""
        return self.label < self.known

    @property
    def named_right(self) -> NDArray[np.bool_]:
        """Whether each image is assigned to its true class, of shape (N,), ignoring the threshold."""
        return np.asarray(self.label == self.predicted)

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each image reaches the threshold, of shape (N,)."""
        return np.full(len(self.label), True) if self.threshold is None else self.confidence >= self.threshold

    def metrics(self) -> dict[str, float]:
        """Return all metrics that the images allow.

        With both known and unknown images, returns every metric. With known images only, returns `acc` and, at a
        threshold, `acc_k`. With unknown images only, returns `acc_u` at a threshold.
        """
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
        """Whether each decision is correct, of shape (N,): known images classified correctly, unknown ones rejected."""
        return np.where(self.is_known, self.named_right & self.accepted, ~self.accepted)

    def by_class(self) -> "list[ClassResult]":
        """Return one result per class that occurs: known classes first, then unknown classes, both worst first."""
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
        """Return the (true class, wrongly predicted class) pairs among accepted images, most frequent first."""
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
        """Return one result per value of a column, worst first.

        Groups are sorted by H-score if all groups have one. Otherwise they are sorted by the upper end of the interval,
        so that small groups do not come first by chance.
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
    """Result for the images of one true class. All rates are shares of these images."""

    name: str
    known: bool
    images: int
    acc: float | None
    """Share classified correctly without rejection; None for an unknown class."""
    acc_k: float | None
    """Share accepted and classified correctly; None for an unknown class or without a threshold."""
    rejected: float | None
    """Share below the threshold; None without a threshold."""
    taken_for: str | None
    """Most frequently predicted wrong class, whether the images are rejected or not."""
    share: float
    """Share of images for which `taken_for` is predicted."""

    @property
    def rate(self) -> float:
        """The share of correct decisions: the accuracy, or the share rejected for an unknown class."""
        return (self.acc if self.known else self.rejected) or 0.0


class Confused(NamedTuple):
    """Accepted images of one class for which another class is predicted."""

    true: str
    taken_for: str
    known: bool
    images: int
    of: int

    @property
    def share(self) -> float:
        """The share among all images of the true class."""
        return self.images / self.of


class GroupResult(NamedTuple):
    """Result for one group of images."""

    group: str
    known: int
    unknown: int
    correct: float
    """Share of correct decisions or, without a threshold, the accuracy on known images."""
    low: float
    high: float
    metrics: Mapping[str, float]


def pair_counts(label: NDArray[np.int64], taken: NDArray[np.int64], rows: int, columns: int) -> NDArray[np.int64]:
    """Count the images of class i for which class j is predicted, as an array of shape (rows, columns).

    Predictions of `columns` or above are not counted.
    """
    counted = taken < columns
    label, taken = label[counted], taken[counted]
    return np.bincount(label * columns + taken, minlength=rows * columns).reshape(rows, columns)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95% Wilson interval of a share of `count` images; (0, 1) without images."""
    from scipy.stats import binomtest  # takes a second to import

    if not count:
        return 0.0, 1.0
    interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
