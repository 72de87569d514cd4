"""Metrics of calibration, and of the mistakes that remain when the least confident images are rejected."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError
from medic.openset.metrics import as_confidence
from medic.openset.scores import Values

BINS = 15
"""The number of bins of equal width that probabilities are counted in."""


class Reliability(NamedTuple):
    """A reliability diagram: the images, mean probability and accuracy of every bin, (bins,) each; 0 if it is empty."""

    images: Tensor
    probability: Tensor
    accuracy: Tensor


class RiskCoverage(NamedTuple):
    """The error among the most confident images, by their share of all images, both (points,) in float64."""

    coverage: Tensor
    risk: Tensor


def reliability_diagram(probability: Values, correct: Values, bins: int = BINS) -> Reliability:
    """Count images by the probability (N,) of their prediction, and how many of them are correct (N,)."""
    values, hits = _columns(probability, correct)
    if len(values) and not bool(((values >= 0) & (values <= 1)).all()):
        raise MedicError("a probability is not between 0 and 1: give probabilities, such as the sigmoid of log-odds")
    place = (values * bins).long().clamp(max=bins - 1)
    member = functional.one_hot(place, bins).double()  # a product, because scattered sums are not reproducible
    images = member.sum(dim=0)
    whole = images.clamp(min=1)
    return Reliability(images, values @ member / whole, hits.double() @ member / whole)


def ece(probability: Values, correct: Values, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean distance of accuracy and probability over the bins' images."""
    images, predicted, actual = reliability_diagram(probability, correct, bins)
    return float((images * (predicted - actual).abs()).sum() / images.sum())


def brier(probability: Values, correct: Values) -> float:
    """Return the Brier score: the mean squared distance of the probability (N,) of a prediction from 1 if it is correct
    (N,), and else from 0.
    """
    values, hits = _columns(probability, correct)
    return float((values - hits.double()).square().mean())


def risk_coverage(confidence: Values, correct: Values) -> RiskCoverage:
    """Return the share of wrong images among the n most confident ones, for every n.

    Images of equal confidence are taken in random order: the risk is its mean.
    """
    values, hits = _columns(confidence, correct)
    values, order = values.sort(descending=True)
    wrong = (~hits[order]).double()
    _, group, sizes = torch.unique_consecutive(values, return_inverse=True, return_counts=True)
    member_error = torch.zeros(len(sizes), dtype=torch.float64, device=values.device).index_add(0, group, wrong) / sizes
    count = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
    return RiskCoverage(count / len(values), member_error[group].cumsum(0) / count)


def aurc(confidence: Values, correct: Values) -> float:
    """Return the area under the risk-coverage curve: the mean risk over all shares of the images."""
    return float(risk_coverage(confidence, correct).risk.mean())


def _columns(confidence: Values, correct: Values) -> tuple[Tensor, Tensor]:
    """Return confidences (N,) in float64, and whether each image is correct (N,)."""
    hits = torch.as_tensor(correct).bool()
    values = as_confidence(confidence, correct=hits).to(hits.device)
    if not len(values):
        raise MedicError("no images to measure: give at least one")
    return values, hits
