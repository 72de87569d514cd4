"""The choice of a threshold for a model in use, and what it accepts and rejects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from medic.data.classes import UNKNOWN_LABEL
from medic.deploy.predictor import Predictor
from medic.errors import MedicError
from medic.openset import Threshold, decide, predicted_class
from medic.openset.calibration import best_threshold, conformal, highest_acceptance, two_components
from medic.utils.outputs import Output

SHARES = (0.99, 0.95, 0.9, 0.8, 0.7)
"""The acceptance rates that are shown for comparison, as far as there are enough images."""
FEWEST = 20
"""Images without labels that two components are fitted to."""


@dataclass(frozen=True)
class Labelled:
    """Outputs for labelled images: a known class or -1 (N,); `about` says which images they are."""

    output: Output
    label: Tensor
    about: str
    others: tuple[str, ...] = ()
    """The names that were taken for unknown, because they are no classes of the model."""


@dataclass(frozen=True)
class Effect:
    """The fractions of images that a threshold accepts and rejects; None where there are no such images.

    Of the known images, `accepted` are taken for known, and `named` also get their own class. `rejected` is of the
    unknown images, and `unlabelled` is the accepted fraction of the images without labels.
    """

    threshold: Threshold
    accepted: float | None
    named: float | None
    rejected: float | None
    unlabelled: float | None


@dataclass(frozen=True)
class Calibration:
    """A model with what its threshold can be chosen by: labelled images, images without labels, or both."""

    predictor: Predictor
    labelled: Labelled | None = None
    unlabelled: Output | None = None

    def accepting(self, share: float) -> Threshold:
        """Return the threshold that accepts a known image with a probability of at least `share`; see `conformal`."""
        labelled = self._labelled()
        known = labelled.label >= 0
        return self._threshold(conformal(self._confidence[known], share), f"accept {100 * share:g} %")

    def best(self, cost: float | None = None) -> Threshold:
        """Return the threshold with the best H-score, or with the least cost; see `best_threshold`."""
        labelled = self._labelled()
        if not bool((labelled.label < 0).any()):
            way = f"label some `{UNKNOWN_LABEL}`, or choose by --accept P"
            raise MedicError(f"no unknown image among {labelled.about}: {way}")
        value = best_threshold(self._confidence, predicted_class(labelled.output), labelled.label, cost)
        return self._threshold(value, "best H-score" if cost is None else f"cost {cost:g}")

    def dividing(self) -> Threshold:
        """Return the threshold between two components of the images without labels; see `two_components`."""
        if self.unlabelled is None:
            raise MedicError("no images without labels: give them with --images")
        if (count := len(self.unlabelled.logits)) < FEWEST:
            raise MedicError(f"--images: {count} images are too few to find two components, give {FEWEST} or more")
        return self._threshold(two_components(self.predictor.score(self.unlabelled)), "two components")

    def choose(
        self, accept: float | None, threshold: float | None, cost: float | None, labels: bool
    ) -> Threshold | None:
        """Return the threshold that options choose; `labels` says whether the labelled images are the user's own.

        Without any option, labelled images of the user or new images choose it; otherwise None is returned.
        """
        if threshold is not None:
            return self.predictor.at(threshold).threshold
        if accept is not None:
            return self.accepting(accept)
        if cost is not None or labels:
            return self.best(cost)
        return None if self.unlabelled is None else self.dividing()

    def comparisons(self) -> Iterator[Threshold]:
        """Yield thresholds to compare: the model's own, several acceptance rates, and what else the images allow."""
        yield self.predictor.threshold
        if self.labelled is not None:
            most = highest_acceptance(int((self.labelled.label >= 0).sum()))
            shares = map(self.accepting, [share for share in SHARES if share <= most])
            yield from (threshold for threshold in shares if threshold.value != self.predictor.threshold.value)
        if self.predictor.score.probability:
            yield self.predictor.at(0.5).threshold._replace(rule="probability 0.5")
        if self.unlabelled is not None and len(self.unlabelled.logits) >= FEWEST:
            yield self.dividing()
        if self.labelled is not None and bool((self.labelled.label < 0).any()):
            yield self.best()

    def effect(self, threshold: Threshold) -> Effect:
        """Return what a threshold does."""
        accepted = named = rejected = unlabelled = None
        if self.labelled is not None:
            label, confidence = self.labelled.label, self._confidence
            known = label >= 0
            decision = decide(confidence, predicted_class(self.labelled.output), threshold.value)
            accepted, named = _mean(decision[known] >= 0), _mean(decision[known] == label[known])
            rejected = _mean(decision[~known] < 0)
        if self.unlabelled is not None:
            unlabelled = _mean(self.predictor.score(self.unlabelled) >= threshold.value)
        return Effect(threshold, accepted, named, rejected, unlabelled)

    def apply(self, threshold: Threshold) -> Predictor:
        """Return the model with a chosen threshold, and with a record of the images that it was chosen by."""
        described = {**self.predictor.description, "calibration": self.record()}
        return replace(self.predictor.at(threshold), description=described)

    def record(self) -> dict[str, object]:
        """Return which images a threshold was chosen by, to be kept in `model.json`."""
        images: dict[str, object] = {}
        if self.labelled is not None:
            known = int((self.labelled.label >= 0).sum())
            images = {"images": self.labelled.about, "known": known, "unknown": len(self.labelled.label) - known}
        return images if self.unlabelled is None else {**images, "unlabelled": len(self.unlabelled.logits)}

    def _labelled(self) -> Labelled:
        if self.labelled is None:
            raise MedicError("a model without its run has no held-out images: give some with --labels or --images")
        return self.labelled

    @cached_property
    def _confidence(self) -> Tensor:
        return self.predictor.score(self._labelled().output)

    def _threshold(self, value: float, rule: str) -> Threshold:
        return Threshold.of(value, rule, self.predictor.score.probability)


def _mean(mask: Tensor) -> float | None:
    return float(mask.double().mean()) if len(mask) else None


def label_images(predictor: Predictor, rows: Sequence[tuple[str, str]], about: str) -> Labelled:
    """Infer images with their classes; one that is no class of the model is unknown."""
    if not rows:
        raise MedicError(f"{about}: the list of labels is empty, give paths of images with their classes")
    if wrong := next((row for row in rows if not isinstance(row, tuple | list) or len(row) != 2), None):
        raise MedicError(f"{about}: {wrong!r} is not a pair, give the path of an image and its class")
    position = {name: index for index, name in enumerate(predictor.classes)}
    label = torch.tensor([position.get(name, -1) for _, name in rows])
    if not bool((label >= 0).any()):
        classes = ", ".join(predictor.classes[:5])
        raise MedicError(f"{about}: no label is a class of the model ({classes}, …); the first is {rows[0][1]!r}")
    others = tuple(dict.fromkeys(name for _, name in rows if name not in position))
    return Labelled(predictor.infer([path for path, _ in rows]), label, about, others)
