"""Thresholds from calibration samples."""

import numpy as np
import pytest
import torch

from medic.errors import MedicError
from medic.openset import decide, hard_hscore
from medic.openset.calibration import across_domains, best_threshold, conformal, p_values, two_components


@pytest.mark.parametrize(("count", "accept", "place"), [
    (9, 0.9, 1), (19, 0.95, 1), (19, 0.9, 2), (99, 0.95, 5), (100, 0.95, 5), (10, 0.5, 5), (99, 0.99, 1),
])  # fmt: skip
def test_conformal_is_an_order_statistic(count, accept, place):
    confidence = torch.randperm(count).double()
    assert conformal(confidence, accept) == place - 1


@pytest.mark.parametrize("accept", [0.5, 0.8, 0.95])
def test_conformal_keeps_its_promise(accept):
    """Over many calibration sets of 39 samples, a new sample is accepted as often as promised, and not much more."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(20000, 40))
    accepted = [row[39] >= conformal(row[:39], accept) for row in draws[:4000]]
    exact = 1 - np.floor((1 - accept) * 40 + 1e-9) / 40
    assert exact >= accept
    assert np.mean(accepted) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(-1, 3, 30)
    label[:2] = (-1, 0)
    prediction, confidence = rng.integers(0, 3, 30), rng.integers(0, 12, 30).astype(float)
    tried = np.arange(-1, 14) - 0.5

    def at(value):
        return hard_hscore(decide(confidence, prediction, value), label)

    best = at(best_threshold(confidence, prediction, label))
    assert best.hscore == pytest.approx(max(at(value).hscore for value in tried), abs=1e-12)
    for cost in (0.1, 1, 10):
        mine = at(best_threshold(confidence, prediction, label, cost))
        costs = [cost * (1 - h.acc_u) + 1 - h.acc_k for h in map(at, tried)]
        assert cost * (1 - mine.acc_u) + 1 - mine.acc_k == pytest.approx(min(costs), abs=1e-12)


def test_the_smallest_of_equally_good_thresholds():
    assert best_threshold([0.0, 1.0, 2.0, 3.0], [0, 0, 0, 0], [-1, -1, 0, 0]) == 2
    assert best_threshold([0.0, 1.0, 2.0], [0, 1, 0], [-1, 0, 0]) == 1  # the misnamed sample at 1 changes nothing
    nothing = best_threshold([1.0, 2.0], [0, 0], [0, -1], cost=10)  # all are rejected, by the next number after 2
    assert nothing == np.nextafter(2.0, 3.0)


def test_two_components_are_divided_between_their_means():
    rng = np.random.default_rng(2)
    mixed = np.concatenate([rng.normal(-3, 1, 500), rng.normal(3, 1, 500)])
    assert two_components(mixed) == pytest.approx(0, abs=0.15)
    assert two_components([*mixed, np.inf]) == two_components(mixed)
    assert two_components([1.0, 1.0]) == 1


@pytest.mark.parametrize("call", [
    lambda: conformal([], 0.9),
    lambda: conformal([1.0], 0),
    lambda: conformal(range(1000), 1),
    lambda: conformal(range(98), 0.99),
    lambda: conformal(range(8), 0.9),
    lambda: conformal([1.0, float("nan")], 0.9),
    lambda: best_threshold([1.0, 2.0], [0, 1], [0, 1]),
    lambda: best_threshold([1.0, 2.0], [0, 1], [0, -1], cost=0),
    lambda: two_components([]),
])  # fmt: skip
def test_mistakes(call):
    with pytest.raises(MedicError):
        call()


@pytest.mark.parametrize("accept", [0.5, 0.8, 0.9, 0.95])
def test_a_threshold_across_domains_accepts_p_values_above_its_share(accept):
    generator = torch.Generator().manual_seed(0)
    domains = [torch.randn(count, generator=generator).round(decimals=1) + shift for count, shift in ((39, 0), (60, 1))]
    new = torch.randn(500, generator=generator).round(decimals=1)
    value = across_domains(domains, accept)
    assert value == min(conformal(domain, accept) for domain in domains)
    plausible = p_values(new, domains)
    assert torch.equal(new >= value, plausible > 1 - accept + 1e-12)
    by_hand = [max((1 + int((domain <= one).sum())) / (len(domain) + 1) for domain in domains) for one in new]
    assert plausible.tolist() == pytest.approx(by_hand)


def test_p_values_of_samples_like_the_known_ones_are_uniform():
    generator = torch.Generator().manual_seed(1)
    known, new = torch.randn(999, generator=generator), torch.randn(2000, generator=generator)
    plausible = p_values(new, [known])
    for share in (0.05, 0.1, 0.5):
        assert float((plausible <= share).double().mean()) == pytest.approx(share, abs=0.04)
