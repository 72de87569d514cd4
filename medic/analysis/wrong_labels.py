"""Labels that are probably wrong, by confident learning (Northcutt et al. 2021) on validation predictions of runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from medic.errors import MedicError
from medic.runs.run import Run


class HeldOut(NamedTuple):
    """Validation images with class probabilities by models that were trained on their domains, but not on them.

    Images of a target domain are left out: errors of a model there are due to the domain more often than to a label.
    """

    classes: list[str]
    path: list[str]
    label: NDArray[np.int64]
    """Positions (N,) in `classes`."""
    probability: NDArray[np.float64]
    """Mean probabilities (N, C) over the runs that held an image out."""


class Suspect(NamedTuple):
    """An image whose label is probably wrong."""

    path: str
    label: str
    probably: str
    """The class that it confidently belongs to."""
    confidence: float
    """The probability of its label."""


def held_out(runs: Sequence[Run], labels: Mapping[str, str]) -> HeldOut:
    """Collect the validation predictions of runs for images, whose class is given by path.

    Images of other paths, and images whose class has changed since the run, are left out.
    """
    classes = runs[0].classes
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, int] = {}
    for run in runs:
        names = run.classes
        if sorted(names) != sorted(classes):
            raise MedicError(f"runs {runs[0].path} and {run.path} have different known classes: give runs of one split")
        order = [names.index(name) for name in classes]
        predictions = run.predictions
        rows = np.flatnonzero((predictions["split"] == "validation") & (predictions["label"] >= 0))
        probability = softmax(predictions["logits"][rows].astype(np.float64), axis=1)[:, order]
        own = zip(predictions["path"][rows].tolist(), run.true_classes[rows].tolist(), probability, strict=True)
        for path, label, values in own:
            if labels.get(path) == label:
                sums[path] = sums.get(path, 0.0) + values
                counts[path] = counts.get(path, 0) + 1
    if not sums:
        raise MedicError(f"run {runs[0].path} held out none of these images: give runs on the same dataset and root")
    position = {name: number for number, name in enumerate(classes)}
    return HeldOut(
        classes,
        list(sums),
        np.array([position[labels[path]] for path in sums]),
        np.stack([values / counts[path] for path, values in sums.items()]),
    )


def confident_classes(probability: NDArray[np.float64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class (N,) that each image confidently belongs to, by probabilities (N, C) and labels (N,).

    The threshold of a class is the mean probability of the class over the images with its label. An image belongs to
    the likeliest class whose threshold it reaches, and keeps its label if it reaches none.
    """
    classes = probability.shape[1]
    counts = np.bincount(label, minlength=classes)
    own = np.bincount(label, probability[np.arange(len(label)), label], minlength=classes)
    threshold = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    reached = np.where(probability >= threshold, probability, -1.0)
    return np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), label)


def wrong_labels(predictions: HeldOut) -> list[Suspect]:
    """Return the images that confidently belong to another class than their label, the least probable label first."""
    probably = confident_classes(predictions.probability, predictions.label)
    confidence = predictions.probability[np.arange(len(predictions.label)), predictions.label]
    rows = np.flatnonzero(probably != predictions.label)
    return [
        Suspect(
            predictions.path[row],
            predictions.classes[predictions.label[row]],
            predictions.classes[probably[row]],
            float(confidence[row]),
        )
        for row in rows[np.argsort(confidence[rows], kind="stable")]
    ]
