"""The class splits of the paper and of its ablation, by their numbers."""

import itertools
import math
from collections import Counter

import pytest
import torch

from medic.tasks import chunks
from medic.tasks.confusable import Confusable, group_potentials, potential_order
from medic.tasks.lagged import softmax_sums
from medic.tasks.samplers import Adaptive, Chained, Probe, chain, group_confusion

PAIRS = torch.tensor(
    [[0.7, 0.3, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.6, 0.4], [0, 0, 0.4, 0.6]], dtype=torch.float64
)  # fmt: skip


def test_chain_keeps_confused_classes_next_to_each_other():
    """Classes 0, 1 and 2, 3 are only confused with each other, so every chain pairs them."""
    generator = torch.Generator().manual_seed(0)
    starts = set()
    for _ in range(50):
        order = chain(PAIRS, generator)
        starts.add(order[0])
        assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 1}), frozenset({2, 3})}
    assert starts == {0, 1, 2, 3}


def test_split_separates_confused_classes():
    """Dealt over two tasks, 0 is never with 1 and 2 never with 3."""
    sampler, generator = Adaptive(), torch.Generator().manual_seed(0)
    sampler.load_state_dict({"confusion": PAIRS[None], "pending": [PAIRS[None]] * sampler.lag})
    for _ in range(50):
        for task in sampler.split([0], [(0,), (1,), (2,), (3,)], 2, generator):
            assert len(set(task) & {0, 1}) == 1
            assert len(set(task) & {2, 3}) == 1


def test_a_chain_that_is_cut_keeps_confused_classes_together():
    sampler, generator = Chained(), torch.Generator().manual_seed(0)
    sampler.load_state_dict({"confusion": PAIRS[None], "pending": [PAIRS[None]] * sampler.lag})
    for _ in range(50):
        tasks = sampler.split([0], [(0,), (1,), (2,), (3,)], 2, generator)
        assert sorted(sorted(task) for task in tasks) == [[0, 1], [2, 3]]


def test_chain_probabilities_leave_out_used_classes():
    """Row (0.7, 0.2, 0.1) at class 0: the next is 1 with 2/3 and 2 with 1/3."""
    row = torch.tensor([[0.7, 0.2, 0.1]] * 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    orders = [order for order in (chain(row, generator) for _ in range(6000)) if order[0] == 0]
    share = sum(order[1] == 1 for order in orders) / len(orders)
    assert share == pytest.approx(2 / 3, abs=0.04)


def test_chain_is_dealt_round_robin(monkeypatch):
    """The chain (2, 0, 1, 3, 4, 5) over three tasks: {2, 3}, {0, 4}, {1, 5}."""
    monkeypatch.setattr("medic.tasks.samplers.chain", lambda *_: [2, 0, 1, 3, 4, 5])
    assert Adaptive().split([0], [(k,) for k in range(6)], 3, torch.Generator()) == [[2, 3], [0, 4], [1, 5]]


def test_groups_sum_blocks_and_normalise_rows():
    """Classes {0, 1} and {2}: rows (0.85, 0.15) and (0.6, 0.4)."""
    matrix = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]], dtype=torch.float64)
    grouped = group_confusion(matrix, [(0, 1), (2,)])
    torch.testing.assert_close(grouped, torch.tensor([[0.85, 0.15], [0.6, 0.4]], dtype=torch.float64))


P = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9], [0.3, 0.7]], dtype=torch.float64)


def test_a_probe_averages_over_all_samples_of_a_class():
    """Class 0 has p(1) of 0.2, 0.4 in domain 0 and 0.9 in domain 1: 1.5 / 3, and not (0.3 + 0.9) / 2."""
    sampler = Probe()
    sampler.observe(softmax_sums(P.log(), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), 2))
    expected = torch.tensor([[0.5, 0.5], [0.3, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(sampler.confusion([0, 1]), expected)
    torch.testing.assert_close(sampler.confusion([]), expected)
    alone = torch.tensor([[0.7, 0.3], [0.5, 0.5]], dtype=torch.float64)  # domain 0 has no class 1: uniform
    torch.testing.assert_close(sampler.confusion([0]), alone)


def test_equal_counts_average_domains_and_samples_alike():
    """Two images of every domain and class: the mean over images is that over the domains' means."""
    logits = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, domain = torch.arange(3).repeat(4), torch.arange(2).repeat_interleave(6)
    sampler = Probe()
    sampler.observe(softmax_sums(logits, y, domain, 2))
    means = [torch.stack([logits.softmax(1)[(y == k) & (domain == d)].mean(0) for k in range(3)]) for d in (0, 1)]
    torch.testing.assert_close(sampler.confusion([0, 1]), (means[0] + means[1]) / 2)
    torch.testing.assert_close(sampler.confusion([1]), means[1])


def test_adaptive_averages_over_the_domains_that_met_a_class():
    """Decay 0.5 from uniform 0.5: p(1 | 0) is 0.4 in domain 0 and 0.7 in domain 1; only domain 1 met class 1."""
    sampler = Adaptive(decay=0.5, lag=1)
    sampler.observe(softmax_sums(P.log(), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), 3))
    expected = torch.tensor([[0.45, 0.55], [0.4, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(sampler.confusion([0, 1]), expected)
    torch.testing.assert_close(sampler.confusion([2]), torch.full((2, 2), 0.5, dtype=torch.float64))


def test_potentials_of_one_and_two_iterations():
    """T17: strength 0.5, class 0 taken for 1 with 0.3, 1 for 0 with 0.1: K = exp(0.1), then exp(0.1)^0.5 · exp(0.1)."""
    probability = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)
    summary = softmax_sums(probability.log(), torch.tensor([0, 1]), None, 1)
    sampler = Confusable(strength=0.5, lag=1)
    for expected in (math.exp(0.1), math.exp(0.15)):
        sampler.observe(summary)
        potential = sampler.potentials([0]).exp()
        assert potential[0, 1].item() == pytest.approx(expected, abs=1e-12)
        assert potential[1, 0] == potential[0, 1]
        assert potential[2, :2].tolist() == potential[:2, 2].tolist() == [1, 1]  # class 2 did not occur


def test_potentials_are_means_over_all_samples_of_a_class():
    """Two samples of class 0 with p(1) = 0.2 and 0.4, one of class 1 with p(0) = 0.1: u = (0.3 + 0.1) / 2."""
    probability = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]], dtype=torch.float64)
    sampler = Confusable(lag=1)
    sampler.observe(softmax_sums(probability.log(), torch.tensor([0, 0, 1]), None, 1))
    assert sampler.potentials([0])[0, 1].item() == pytest.approx(0.2, abs=1e-12)


def test_contiguous_cut_keeps_confused_classes_together():
    """T17: with the matrix of T16 as potentials the tasks are always {0, 1} and {2, 3}."""
    sampler, generator = Confusable(), torch.Generator().manual_seed(0)
    potentials = PAIRS.log()[None]
    sampler.load_state_dict({"confusion": potentials, "pending": [potentials] * sampler.lag})
    firsts = set()
    for _ in range(200):
        tasks = sampler.split([0], [(0,), (1,), (2,), (3,)], 2, generator)
        firsts.add(tuple(tasks[0]))
        assert {frozenset(task) for task in tasks} == {frozenset({0, 1}), frozenset({2, 3})}
    assert firsts == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_orders_have_the_probabilities_of_the_products():
    """All 24 orders of 4 classes: K_ij / Σ K for the first two, then products of K, or uniform where these are 0."""
    potential = torch.tensor([[9, 3, 1, 0], [3, 9, 2, 1], [1, 2, 9, 4], [0, 1, 4, 9]], dtype=torch.float64)
    off = potential.clone().fill_diagonal_(0)

    def probability(order):
        chance = off[order[0], order[1]] / off.sum()
        for position in range(2, 4):
            products = off[list(order[:position])].prod(0)
            chance = chance * (products[order[position]] / products.sum() if products.any() else 1 / (4 - position))
        return float(chance)

    generator, count = torch.Generator().manual_seed(0), 2500
    drawn = Counter(tuple(potential_order(potential.log(), generator)) for _ in range(count))
    expected = {order: probability(order) for order in itertools.permutations(range(4))}
    assert sum(expected.values()) == pytest.approx(1)
    for order, chance in expected.items():
        assert drawn[order] / count == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / count))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_orders_are_uniform_where_potentials_say_nothing(value):
    generator = torch.Generator().manual_seed(0)
    potentials = torch.full((3, 3), value, dtype=torch.float64).log()
    drawn = Counter(tuple(potential_order(potentials, generator)) for _ in range(2000))
    assert len(drawn) == 6
    assert all(number / 2000 == pytest.approx(1 / 6, abs=0.03) for number in drawn.values())
    assert potential_order(potentials[:1, :1], generator) == [0]


def test_products_of_many_potentials_do_not_overflow():
    """400 classes of K = e^100, half of them e^160 with each other: these come first, all of them."""
    potentials = torch.full((400, 400), 100.0, dtype=torch.float64)
    potentials[:200, :200] = 160.0
    order = potential_order(potentials, torch.Generator().manual_seed(0))
    assert sorted(order) == list(range(400))
    assert set(order[:200]) == set(range(200))


def test_potentials_of_domains_are_multiplied():
    first, second = PAIRS + 1, PAIRS.flip(0) + 2
    potentials = torch.stack([first, second]).log()
    sampler = Confusable()
    sampler.load_state_dict({"confusion": potentials, "pending": [potentials] * sampler.lag})
    torch.testing.assert_close(sampler.potentials([1]).exp(), second)
    torch.testing.assert_close(sampler.potentials([0, 1]).exp(), first * second)
    torch.testing.assert_close(sampler.potentials([]).exp(), first * second)
    torch.testing.assert_close(sampler.potentials([0, 7]).exp(), first)  # 7 was never met: 1


def test_groups_have_the_potential_that_averaged_confusion_makes():
    """Of groups {0, 2} and {1, 3} with all classes met: log K ← 0.5 log K + mean of u over the four pairs."""
    generator = torch.Generator().manual_seed(0)
    sampler, expected, groups = Confusable(lag=1), 0.0, [(0, 2), (1, 3)]
    for _ in range(3):
        logits = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        sampler.observe(softmax_sums(logits, torch.arange(4), None, 1))
        p = logits.softmax(1)
        u = sum((p[i, j] + p[j, i]) / 2 for i in groups[0] for j in groups[1]) / 4
        expected = 0.5 * expected + float(u)
    grouped = group_potentials(sampler.potentials([0]), groups)
    assert grouped[0, 1].item() == pytest.approx(expected, abs=1e-12)
    assert grouped[1, 0].item() == pytest.approx(expected, abs=1e-12)
    assert group_potentials(None, groups).tolist() == [[0, 0], [0, 0]]


def test_groups_and_domain_splits_of_the_authors():
    """65 classes in 10 groups, 345 in 20, 7 classes in 3 chunks, 5 domains in 3: larger parts first."""
    sizes = {(n, parts): [len(chunk) for chunk in chunks(range(n), parts)] for n, parts in SIZES}
    assert sizes == SIZES


SIZES = {
    (65, 10): [7] * 5 + [6] * 5,
    (345, 20): [18] * 5 + [17] * 15,
    (7, 3): [3, 2, 2],
    (5, 3): [2, 2, 1],
}
