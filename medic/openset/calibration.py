"""Thresholds from calibration samples: with a guarantee, by what mistakes cost, or from samples without labels."""

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

    It is the ⌊(1 − accept)(N + 1)⌋-th smallest of the confidences (N,) of known samples, as in split conformal
    prediction; more than N / (N + 1) cannot be promised. The guarantee is for samples that are exchangeable with these,
    such as further images of the same domains, and if the model does not depend on these. A new domain breaks it.
    """
    check_range("calibration", Limits(0, 1, above=True, below=True), accept=accept)
    sorted_ = as_confidence(confidence).sort().values
    count = len(sorted_)
    if accept > highest_acceptance(count):
        needed = math.ceil(accept / (1 - accept) - 1e-9)
        most = f"{count} known samples allow {highest_acceptance(count):.3f}" if count else "there is none"
        raise MedicError(f"to accept {accept:g}, {needed:,} known samples are needed; {most}")
    # Compared as quotients, because (1 − 0.9) · 10 is less than 1 in floating point.
    rejected = int((torch.arange(1, count + 1, dtype=torch.float64) / (count + 1) >= accept).sum())
    return float(sorted_[rejected - 1])


def across_domains(domains: Iterable[Values], accept: float) -> float:
    """Return the smallest of the thresholds by `conformal` of several domains, each with confidences of its own.

    Score every source domain by a model that was not trained on it, and the threshold allows for a shift as large as
    the largest among them.
    """
    return min(conformal(confidence, accept) for confidence in domains)


def p_values(confidence: Values, domains: Iterable[Values]) -> Tensor:
    """Return conformal p-values (N,): how plausible a sample is as a known one, in the domain that suits it best.

    In a domain with confidences (M,) of known samples, it is (1 + number of them that are at most as large) / (M + 1).
    The threshold of `across_domains` accepts exactly the samples whose p-value is above 1 − `accept`.
    """
    values = as_confidence(confidence)
    in_domains = [
        (1 + torch.searchsorted(known, values, right=True)).double() / (len(known) + 1)
        for known in (as_confidence(domain).to(values.device).sort().values for domain in domains)
    ]
    return torch.stack(in_domains).amax(0)


def highest_acceptance(count: int) -> float:
    """Return the highest acceptance rate that `conformal` can promise by so many known samples."""
    return count / (count + 1)


def best_threshold(confidence: Values, prediction: Values, label: Values, cost: float | None = None) -> float:
    """Return the threshold with the best H-score on labelled samples, or with the least cost.

    An accepted unknown sample costs `cost`, and a known sample that is rejected or misnamed 1; both kinds count as
    equally frequent: `cost · (1 − acc_u) + (1 − acc_k)` is least. Of equally good thresholds the smallest is returned.
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
    """Return the confidence at which two normal components, fitted to unlabelled samples (N,), are equally likely.

    It sees the samples to be decided on, which is called transductive. It supposes that both kinds are among them, in
    comparable numbers, and that the unknown ones have the lower confidence. Samples with one and the same confidence
    are all accepted.
    """
    from sklearn.mixture import GaussianMixture

    values = as_confidence(confidence)
    if not len(values):
        raise MedicError("no sample to choose a threshold by")
    if len(values[values.isfinite()].unique()) < 2:
        return float(values.min())
    values = values[values.isfinite()]
    fitted = GaussianMixture(2, random_state=0, n_init=3).fit(values.cpu().numpy()[:, None])
    low, high = sorted(fitted.means_[:, 0].tolist())
    grid = torch.linspace(low, high, 1001, dtype=torch.float64)
    upper: Tensor = torch.from_numpy(fitted.predict_proba(grid.numpy()[:, None])[:, int(fitted.means_.argmax())])
    return float(grid[int((upper >= 0.5).byte().argmax())])
