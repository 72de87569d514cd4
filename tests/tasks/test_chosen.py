"""Tasks that were chosen: the grid deals them instead of those of a split."""

import itertools

import pytest
import torch

from medic.errors import MedicError
from medic.tasks import Grid
from tests.messages import naming


def full(domains: int, classes: int, count: int):
    cells = torch.cartesian_prod(torch.arange(domains), torch.arange(classes)).repeat(count, 1)
    return cells[:, 1], cells[:, 0]


def dealt(grid, cells):
    """The cells of every task of every step."""
    return [[frozenset(task.cells) for task in step] for step in grid.draw(cells, 4)]


@pytest.mark.parametrize("grid", [
    Grid(3, 3), Grid(2, 3, steps=(4, 2)), Grid(classes=3), Grid(2, 2, pairing="diagonal"), Grid(2, 2, repeat=3),
])  # fmt: skip
def test_candidates_are_the_tasks_of_independent_splits(grid):
    y, domain = full(3, 6, 4)
    cells = grid.index(y, domain)
    draws = [grid.candidates(cells, splits=2) for _ in range(5)]
    for candidates in draws:
        half = len(candidates) // 2
        assert half == sum(grid.spec.round)
        for split in (candidates[:half], candidates[half:]):
            assert sorted(itertools.chain(*split)) == cells.keys
    assert len({tuple(map(tuple, candidates)) for candidates in draws}) == 5
    assert any(set(map(tuple, c[: len(c) // 2])) != set(map(tuple, c[len(c) // 2 :])) for c in draws)


@pytest.mark.parametrize(
    "grid", [Grid(3, 3), Grid(3, 3, steps=(5, 4)), Grid(classes=3), Grid(2, 2, pairing="diagonal")]
)
def test_they_are_dealt_anew_over_the_steps(grid):
    y, domain = full(3, 6, 8)
    cells = grid.index(y, domain)
    grid.chosen = grid.candidates(cells, splits=2)[: sum(grid.spec.round)]
    chosen = sorted(sorted(task) for task in grid.chosen)
    seen = set()
    for _ in range(10):
        steps = dealt(grid, cells)
        assert tuple(map(len, steps)) == grid.sizes
        assert sorted(sorted(task) for step in steps for task in step) == chosen
        seen.add(tuple(map(frozenset, steps)))
    assert len(seen) > 1


def test_every_round_of_an_iteration_deals_them_all():
    y, domain = full(3, 6, 8)
    grid = Grid(2, 2, repeat=3)
    cells = grid.index(y, domain)
    grid.chosen = grid.candidates(cells, splits=1)
    steps = dealt(grid, cells)
    assert tuple(map(len, steps)) == grid.sizes == (2,) * 6
    for start in (0, 2, 4):
        assert {task for step in steps[start : start + 2] for task in step} == set(map(frozenset, grid.chosen))


def test_separate_steps_take_tasks_of_different_domains():
    """Of four tasks of domain 0 in three steps two share one, and no two of the others do."""
    y, domain = full(3, 6, 8)
    grid = Grid(3, 3, separate="step")
    cells = grid.index(y, domain)
    grid.chosen = [[(d, c)] for d, labels in ((0, 4), (1, 3), (2, 2)) for c in range(labels)]
    for _ in range(10):
        domains = [[cell[0] for task in step for cell in task] for step in dealt(grid, cells)]
        assert [step.count(1) for step in domains] == [1, 1, 1]
        assert max(step.count(0) for step in domains) == 2


def test_cells_that_are_gone_are_left_out():
    y, domain = full(3, 6, 8)
    grid = Grid(3, 3)
    grid.chosen = [[(0, 0), (0, 1)], [(1, 2)]]
    without = grid.index(*(labels[(domain != 0) | (y != 1)] for labels in (y, domain)))
    assert sorted(sorted(task) for step in dealt(grid, without) for task in step) == [[(0, 0)], [(1, 2)]]
    grid.chosen = [[(7, 7)]]
    assert sum(map(len, dealt(grid, without))) == 9


def test_the_state_has_them():
    y, domain = full(3, 6, 8)
    grid, again = Grid(3, 3), Grid(3, 3, seed=9)
    cells, others = grid.index(y, domain), again.index(y, domain)
    grid.chosen = grid.candidates(cells, splits=2)[:9]
    again.load_state_dict(grid.state_dict())
    assert dealt(again, others) == dealt(grid, cells)


def test_a_batch_cannot_be_partitioned_so():
    y, domain = full(3, 6, 2)
    with pytest.raises(MedicError, match=naming("'informative'")):
        Grid(3, 3, sampling="informative")(torch.arange(len(y)), y, domain)
