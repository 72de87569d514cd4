"""Thresholds from calibration samples: with a guarantee, based on the cost of mistakes, or without labels."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.openset.metrics import Outcomes, as_confidence
from medic.openset.scores import Values
from medic.utils.parts import POSITIVE, Limits, check_range


def conformal(confidence: Values, accept: float) -> float:
    """Return the largest threshold that accepts a new known sample with a probability of at least `accept`.

    As in split conformal prediction, the threshold is the ⌊(1 − accept)(N + 1)⌋-th smallest confidence among the N
    known samples. N samples guarantee an `accept` of at most N / (N + 1). The guarantee holds for samples that are
    exchangeable with the calibration samples, such as new images from the same domains, provided that the model was not
    fitted on the calibration samples. It does not hold in a new domain.
    """
    check_range("calibration", Limits(0, 1, above=True, below=True), accept=accept)
    sorted_ = as_confidence(confidence).sort().values
    count = len(sorted_)
    if accept > highest_acceptance(count):
        needed = math.ceil(accept / (1 - accept) - 1e-9)
        most = f"got {count}, enough for {highest_acceptance(count):.3f}" if count else "got none"
        raise MedicError(f"an acceptance rate of {accept:g} requires {needed:,} known samples, {most}")
    # Compare quotients, because (1 − 0.9) · 10 is less than 1 in floating point.
    rejected = int((torch.arange(1, count + 1, dtype=torch.float64) / (count + 1) >= accept).sum())
    return float(sorted_[rejected - 1])


def across_domains(domains: Iterable[Values], accept: float) -> float:
    """Return the smallest `conformal` threshold over several domains. `domains` holds the confidences for each domain.

    If each source domain is scored by a model that was not trained on it, the threshold tolerates a shift as large as
    the largest shift between source domains.
    """
    return min(conformal(confidence, accept) for confidence in domains)


def p_values(confidence: Values, domains: Iterable[Values]) -> Tensor:
    """Return conformal p-values of shape (N,): how plausible it is that a sample is known, in its best domain.

    In a domain with M known samples, the p-value is (1 + m) / (M + 1), where m is the number of known samples with at
    most the sample's confidence. The threshold of `across_domains` accepts exactly the samples with a p-value above 1 −
    `accept`.
    """
    values = as_confidence(confidence)
    in_domains = [
        (1 + torch.searchsorted(known, values, right=True)).double() / (len(known) + 1)
        for known in (as_confidence(domain).to(values.device).sort().values for domain in domains)
    ]
    return torch.stack(in_domains).amax(0)


def highest_acceptance(count: int) -> float:
    """Return the highest acceptance rate that `conformal` can guarantee with `count` known samples."""
    return count / (count + 1)


def best_threshold(confidence: Values, prediction: Values, label: Values, cost: float | None = None) -> float:
    """Return the threshold with the best H-score on labelled samples, or with the lowest cost if `cost` is set.

    Accepting an unknown sample costs `cost`. Rejecting or misclassifying a known sample costs 1. Known and unknown
    samples are treated as equally frequent, so the threshold minimises `cost · (1 − acc_u) + (1 − acc_k)`. Ties are
    resolved in favour of the smallest threshold.
    """
    outcomes = Outcomes.of(prediction, label)
    outcomes.check_unknown()
    if cost is not None:
        check_range("calibration", POSITIVE, cost=cost)
    level = as_confidence(confidence)
    ranking = outcomes.rank(level)
    acc_k = ranking.correct.double() / ranking.known[-1]
    acc_u = 1 - ranking.unknown.double() / ranking.unknown[-1]
    if cost is None:
        worth = 2 * acc_k * acc_u / (acc_k + acc_u).clamp(min=torch.finfo(torch.float64).tiny)
    else:
        worth = cost * acc_u + acc_k
    grid = level.unique()
    above = grid[-1:].nextafter(grid.new_tensor(torch.inf))  # rejects everything
    return float(torch.cat([grid, above])[int(worth.flip(0).argmax())])


def two_components(confidence: Values) -> float:
    """Fit two Gaussian components to unlabelled confidences, and return the value at which both are equally likely.

    This rule is transductive: it uses the same samples that it accepts or rejects. It assumes that they contain known
    and unknown samples in comparable numbers, and that unknown samples have lower confidences. If all confidences are
    equal, the threshold accepts every sample.
    """
    from sklearn.mixture import GaussianMixture

    values = as_confidence(confidence)
    if not len(values):
        raise MedicError("choosing a threshold requires at least one sample, got none")
    if len(values[values.isfinite()].unique()) < 2:
        return float(values.min())
    values = values[values.isfinite()]
    fitted = GaussianMixture(2, random_state=0, n_init=3).fit(values.cpu().numpy()[:, None])
    low, high = sorted(fitted.means_[:, 0].tolist())
    grid = torch.linspace(low, high, 1001, dtype=torch.float64)
    upper: Tensor = torch.from_numpy(fitted.predict_proba(grid.numpy()[:, None])[:, int(fitted.means_.argmax())])
    return float(grid[int((upper >= 0.5).byte().argmax())])
