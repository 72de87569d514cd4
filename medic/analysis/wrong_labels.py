"""Probably wrong labels, found by confident learning (Northcutt et al. 2021) on validation predictions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from medic.errors import MedicError
from medic.runs.run import Run


class HeldOut(NamedTuple):
    """Validation images, with class probabilities from models trained on the same domains but not on these images.

    Images of target domains are left out, because errors in a new domain are rarely caused by wrong labels.
    """

    classes: list[str]
    path: list[str]
    label: NDArray[np.int64]
    """Indices into `classes`, of shape (N,)."""
    probability: NDArray[np.float64]
    """Class probabilities, averaged over the runs that held out the image, of shape (N, C)."""


class Suspect(NamedTuple):
    """An image whose label is probably wrong."""

    path: str
    label: str
    probably: str
    """The class that the image confidently belongs to."""
    confidence: float
    """Predicted probability of `label`."""


def held_out(runs: Sequence[Run], labels: Mapping[str, str]) -> HeldOut:
    """Collect the validation predictions of runs. `labels` maps image paths to current class names.

    Images that are not in `labels`, and images whose class has changed since the run, are left out.
    """
    classes = runs[0].classes
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, int] = {}
    for run in runs:
        names = run.classes
        if sorted(names) != sorted(classes):
            raise MedicError(f"runs {runs[0].path} and {run.path} have different known classes: pass runs of one split")
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
        raise MedicError(f"run {runs[0].path} held out none of these images: pass runs with the same dataset and root")
    position = {name: number for number, name in enumerate(classes)}
    return HeldOut(
        classes,
        list(sums),
        np.array([position[labels[path]] for path in sums]),
        np.stack([values / counts[path] for path, values in sums.items()]),
    )


def confident_classes(probability: NDArray[np.float64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class that each image confidently belongs to, of shape (N,).

    `probability` has shape (N, C). The threshold of a class is its mean probability over the images with its label. An
    image belongs to the most likely class whose threshold it reaches. If it reaches no threshold, it keeps its label.
    """
    classes = probability.shape[1]
    counts = np.bincount(label, minlength=classes)
    own = np.bincount(label, probability[np.arange(len(label)), label], minlength=classes)
    threshold = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    reached = np.where(probability >= threshold, probability, -1.0)
    return np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), label)


def wrong_labels(predictions: HeldOut) -> list[Suspect]:
    """Return the images that confidently belong to a class other than their label, least probable labels first."""
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
