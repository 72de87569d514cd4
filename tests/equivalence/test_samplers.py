"""The adaptive split of the paper, by its numbers."""

import pytest
import torch

from medic.tasks import chunks
from medic.tasks.samplers import Adaptive, chain, group_confusion

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
    sampler.load_state_dict({"confusion": PAIRS[None], "pending": [PAIRS[None]] * sampler.lag, "seen": [0]})
    for _ in range(50):
        for task in sampler.split([0], [(0,), (1,), (2,), (3,)], 2, generator):
            assert len(set(task) & {0, 1}) == 1
            assert len(set(task) & {2, 3}) == 1


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
