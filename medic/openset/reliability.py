"""Calibration metrics, and metrics for the mistakes that remain after rejecting the least confident images."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError
from medic.openset.metrics import as_confidence
from medic.openset.scores import Values

BINS = 15
"""Number of equal-width probability bins."""


class Reliability(NamedTuple):
    """A reliability diagram: number of images, mean probability and accuracy per bin, each of shape (bins,).

    All three are 0 for an empty bin.
    """

    images: Tensor
    probability: Tensor
    accuracy: Tensor


class RiskCoverage(NamedTuple):
    """The error rate among the most confident images at each coverage, both of shape (points,) in float64."""

    coverage: Tensor
    risk: Tensor


def reliability_diagram(probability: Values, correct: Values, bins: int = BINS) -> Reliability:
    """Compute a reliability diagram.

    `probability` contains the probability of each prediction, and `correct` whether it is correct, both of shape (N,).
    """
    values, hits = _columns(probability, correct)
    if len(values) and not bool(((values >= 0) & (values <= 1)).all()):
        raise MedicError("probabilities must be between 0 and 1: for log-odds, pass their sigmoid")
    place = (values * bins).long().clamp(max=bins - 1)
    member = functional.one_hot(place, bins).double()  # scatter-add is not reproducible on a GPU
    images = member.sum(dim=0)
    whole = images.clamp(min=1)
    return Reliability(images, values @ member / whole, hits.double() @ member / whole)


def ece(probability: Values, correct: Values, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean of |accuracy − probability| over bins, weighted by bin size."""
    images, predicted, actual = reliability_diagram(probability, correct, bins)
    return float((images * (predicted - actual).abs()).sum() / images.sum())


def brier(probability: Values, correct: Values) -> float:
    """Return the Brier score: the mean squared difference between probability and correctness (1 or 0)."""
    values, hits = _columns(probability, correct)
    return float((values - hits.double()).square().mean())


def nll(log_odds: Values, correct: Values) -> float:
    """Return the mean negative log-likelihood of the predictions being correct or wrong, in nats.

    `log_odds` contains the log-odds of each prediction, which keep probabilities close to 0 and 1 apart, and `correct`
    whether it is correct, both of shape (N,).
    """
    values, hits = _columns(log_odds, correct)
    return float(functional.binary_cross_entropy_with_logits(values, hits.double()))


def risk_coverage(confidence: Values, correct: Values) -> RiskCoverage:
    """Return the error rate among the n most confident images, for every n.

    For images with equal confidence, the error rate is averaged over all their possible orders.
    """
    values, hits = _columns(confidence, correct)
    values, order = values.sort(descending=True)
    wrong = (~hits[order]).double()
    _, group, sizes = torch.unique_consecutive(values, return_inverse=True, return_counts=True)
    member_error = torch.zeros(len(sizes), dtype=torch.float64, device=values.device).index_add(0, group, wrong) / sizes
    count = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
    return RiskCoverage(count / len(values), member_error[group].cumsum(0) / count)


def aurc(confidence: Values, correct: Values) -> float:
    """Return the area under the risk-coverage curve: the mean risk over all coverages."""
    return float(risk_coverage(confidence, correct).risk.mean())


def _columns(confidence: Values, correct: Values) -> tuple[Tensor, Tensor]:
    """Return confidences in float64 and boolean correctness, both of shape (N,)."""
    hits = torch.as_tensor(correct).bool()
    values = as_confidence(confidence, correct=hits).to(hits.device)
    if not len(values):
        raise MedicError("expected at least one image, got none")
    return values, hits
