"""Choose the threshold of a trained model, and measure what each threshold accepts and rejects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from medic.data.classes import UNKNOWN_LABEL
from medic.deploy.model_file import keep_known
from medic.deploy.predictor import Predictor
from medic.errors import MedicError
from medic.openset import Threshold, decide, predicted_class
from medic.openset.calibration import (
    across_domains,
    best_threshold,
    conformal,
    highest_acceptance,
    two_components,
)
from medic.utils.outputs import Output

SHARES = (0.99, 0.95, 0.9, 0.8, 0.7)
"""Acceptance rates to compare, if there are enough images."""
ACCEPT = 0.9
"""Default acceptance rate in left-out domains."""
FEWEST = 20
"""Minimum number of unlabelled images for fitting two components."""


@dataclass(frozen=True)
class Labelled:
    """Outputs for N labelled images. `label` is a known class or -1, and `about` describes the images."""

    output: Output
    label: Tensor
    about: str
    others: tuple[str, ...] = ()
    """Labels that are not classes of the model, so that their images are treated as unknown."""
    tested: bool = False
    """Whether the unknown images are of classes that the target is tested with, so that they must not choose."""


@dataclass(frozen=True)
class Effect:
    """The fractions of images that a threshold accepts and rejects. A fraction is None if there are no such images.

    - `accepted`: known images that are accepted.
    - `named`: known images that are accepted and classified correctly.
    - `rejected`: unknown images that are rejected.
    - `unlabelled`: unlabelled images that are accepted.
    """

    threshold: Threshold
    accepted: float | None
    named: float | None
    rejected: float | None
    unlabelled: float | None


@dataclass(frozen=True)
class Calibration:
    """A model and the images for choosing its threshold: labelled, unlabelled or both."""

    predictor: Predictor
    labelled: Labelled | None = None
    unlabelled: Output | None = None
    left_out: Mapping[str, Tensor] | None = None
    """Confidences of known images by source domain, each from a model that was trained without this domain."""

    def accepting(self, share: float) -> Threshold:
        """Return the threshold that accepts a known image with probability at least `share`.

        The guarantee holds for images like the labelled ones (see `conformal`), or in every left-out domain (see
        `across_domains`).
        """
        if self.left_out is not None:
            value = across_domains(self.left_out.values(), share)
            return self._threshold(value, f"accept {100 * share:g}% of left-out domains")
        return self._accepting_labelled(share)

    def _accepting_labelled(self, share: float) -> Threshold:
        labelled = self._labelled()
        known = labelled.label >= 0
        return self._threshold(conformal(self._confidence[known], share), f"accept {100 * share:g}%")

    def best(self, cost: float | None = None) -> Threshold:
        """Return the threshold with the best H-score or, if `cost` is given, the lowest cost; see `best_threshold`."""
        labelled = self._labelled()
        if not bool((labelled.label < 0).any()):
            way = f"label some of them `{UNKNOWN_LABEL}`, or use --accept P"
            raise MedicError(f"no unknown images among {labelled.about}: {way}")
        if labelled.tested:
            raise MedicError(
                "the run's target is tested with the unknown classes of its held-out images, so they cannot choose a "
                "threshold: pass your own images with --labels (Python: labels=…), or use --accept P"
            )
        value = best_threshold(self._confidence, predicted_class(labelled.output), labelled.label, cost)
        return self._threshold(value, "best H-score" if cost is None else f"cost {cost:g}")

    def dividing(self) -> Threshold:
        """Return the threshold between two components of the unlabelled images; see `two_components`."""
        if self.unlabelled is None:
            raise MedicError("unlabelled images are required: pass them with --images")
        if (count := len(self.unlabelled.logits)) < FEWEST:
            raise MedicError(f"--images must contain at least {FEWEST} images to fit two components, got {count}")
        return self._threshold(two_components(self.predictor.score(self.unlabelled)), "two components")

    def choose(
        self, accept: float | None, threshold: float | None, cost: float | None, labels: bool
    ) -> Threshold | None:
        """Choose a threshold according to the command-line options.

        `labels` tells whether the user provided the labelled images. If no option is given, the threshold is chosen
        with the user's labelled or unlabelled images. Returns None if the user provided no images.
        """
        if threshold is not None:
            return self.predictor.at(threshold).threshold
        if accept is not None or self.left_out is not None:
            return self.accepting(ACCEPT if accept is None else accept)
        if cost is not None or labels:
            return self.best(cost)
        return None if self.unlabelled is None else self.dividing()

    def comparisons(self) -> Iterator[Threshold]:
        """Yield thresholds to compare: the current one, several acceptance rates, and others that the images allow."""
        yield self.predictor.threshold
        if self.labelled is not None:
            most = highest_acceptance(int((self.labelled.label >= 0).sum()))
            shares = map(self._accepting_labelled, [share for share in SHARES if share <= most])
            yield from (threshold for threshold in shares if threshold.value != self.predictor.threshold.value)
        if self.left_out is not None:
            most = min(highest_acceptance(len(confidence)) for confidence in self.left_out.values())
            yield from map(self.accepting, [share for share in SHARES if share <= most])
        if self.predictor.score.probability:
            yield self.predictor.at(0.5).threshold._replace(rule="probability 0.5")
        if self.unlabelled is not None and len(self.unlabelled.logits) >= FEWEST:
            yield self.dividing()
        if self.labelled is not None and not self.labelled.tested and bool((self.labelled.label < 0).any()):
            yield self.best()

    def effect(self, threshold: Threshold) -> Effect:
        """Measure what a threshold accepts and rejects."""
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
        """Return the model with a new threshold and a record of the images used to choose it."""
        described = {**self.predictor.description, "calibration": self.record()}
        held_out = self.predictor.held_out
        if self.left_out is not None:
            held_out = replace(held_out, known=keep_known(self.left_out))
        return replace(self.predictor.at(threshold), description=described, held_out=held_out)

    def record(self) -> dict[str, object]:
        """Describe the images used to choose a threshold, for `model.json`."""
        images: dict[str, object] = {}
        if self.labelled is not None:
            known = int((self.labelled.label >= 0).sum())
            images = {"images": self.labelled.about, "known": known, "unknown": len(self.labelled.label) - known}
        if self.unlabelled is not None:
            images["unlabelled"] = len(self.unlabelled.logits)
        if self.left_out is not None:
            images["left out"] = {domain: len(confidence) for domain, confidence in self.left_out.items()}
        return images

    def _labelled(self) -> Labelled:
        if self.labelled is None:
            raise MedicError("a model outside its run directory has no held-out images: pass --labels or --images")
        return self.labelled

    @cached_property
    def _confidence(self) -> Tensor:
        return self.predictor.score(self._labelled().output)

    def _threshold(self, value: float, rule: str) -> Threshold:
        return Threshold.of(value, rule, self.predictor.score.probability)


def _mean(mask: Tensor) -> float | None:
    return float(mask.double().mean()) if len(mask) else None


def label_images(predictor: Predictor, rows: Sequence[tuple[str, str]], about: str) -> Labelled:
    """Run the model on labelled images, given as (path, class) pairs. Classes that are not in the model are unknown."""
    if not rows:
        raise MedicError(f"{about}: expected at least one image path with its class, got an empty list")
    if wrong := next((row for row in rows if not isinstance(row, tuple | list) or len(row) != 2), None):
        raise MedicError(f"{about}: expected pairs of image path and class, got {wrong!r}")
    position = {name: index for index, name in enumerate(predictor.classes)}
    label = torch.tensor([position.get(name, -1) for _, name in rows])
    if not bool((label >= 0).any()):
        classes = ", ".join(predictor.classes[:5])
        raise MedicError(f"{about}: no label is a class of the model ({classes}, …); the first label is {rows[0][1]!r}")
    others = tuple(dict.fromkeys(name for _, name in rows if name not in position))
    return Labelled(predictor.infer([path for path, _ in rows]), label, about, others)
