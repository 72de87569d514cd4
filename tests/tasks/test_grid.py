"""The grid: cells → tasks → steps, from a batch and from a dataset."""

import itertools
import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medic.errors import MedicError
from medic.tasks import Grid, GridSpec
from tests.messages import naming


def full(domains: int, classes: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and domains of `count` samples in every cell, in random order."""
    cells = torch.cartesian_prod(torch.arange(domains), torch.arange(classes)).repeat(count, 1)
    cells = cells[torch.randperm(len(cells), generator=torch.Generator().manual_seed(1))]
    return cells[:, 1], cells[:, 0]


def partition(grid: Grid, y, domain, **attributes):
    """The steps of a batch whose inputs are the positions of its samples."""
    return grid(torch.arange(len(y)), y, domain, **attributes)


class TestBatch:
    @given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3), st.data())
    def test_every_sample_is_in_exactly_one_task(self, domains, classes, count, data):
        t_d, t_c = data.draw(st.integers(1, domains)), data.draw(st.integers(1, classes))
        n = data.draw(st.integers(1, t_d * t_c))
        y, domain = full(domains, classes, count)
        steps = partition(Grid(t_d, t_c, n), y, domain)
        seen = torch.cat([step.x for step in steps])
        assert sorted(seen.tolist()) == list(range(len(y)))
        assert len(steps) == n
        assert sum(len(step.sizes) for step in steps) == t_d * t_c
        for step in steps:
            assert torch.equal(step.y, y[step.x])
            assert torch.equal(step.domain, domain[step.x])

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=60), st.integers(0, 5))
    def test_batches_with_gaps_are_covered_once_too(self, cells, seed):
        domain, y = torch.tensor(cells).T
        t_d, t_c = min(2, len(domain.unique())), min(3, len(y.unique()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a domain with few classes makes fewer tasks, which is said
            steps = partition(Grid(t_d, t_c, seed=seed), y, domain)
        assert sorted(torch.cat([step.x for step in steps]).tolist()) == list(range(len(y)))

    def test_tasks_of_a_domain_split_have_disjoint_classes(self):
        y, domain = full(3, 6, 2)
        for seed in range(10):
            classes = {d: [] for d in range(3)}
            for step in partition(Grid(3, 3, seed=seed), y, domain):
                for task in step.tasks():
                    assert len(task.domain.unique()) == 1
                    classes[int(task.domain[0])].append(frozenset(task.y.tolist()))
            for sets in classes.values():
                assert sorted(map(len, sets)) == [2, 2, 2]
                assert frozenset.union(*sets) == frozenset(range(6))

    def test_class_splits_are_drawn_per_domain_split(self):
        """Algorithm 1: over many draws the splits of two domains differ more often than not."""
        y, domain = full(2, 6, 1)
        same = 0
        grid = Grid(2, 2)
        for _ in range(40):
            splits = {0: set(), 1: set()}
            for step in partition(grid, y, domain):
                for task in step.tasks():
                    splits[int(task.domain[0])].add(frozenset(task.y.tolist()))
            same += splits[0] == splits[1]
        assert same < 15  # one in ten by chance

    def test_other_axes(self):
        """Hospital and year instead of domain, and three axes at once."""
        cells = torch.cartesian_prod(torch.arange(4), torch.arange(2), torch.arange(3))
        hospital, year, y = cells.T
        grid = Grid(classes=3, axes={"hospital": 2, "year": 2})
        steps = grid(torch.arange(len(y)), y, hospital=hospital, year=year)
        assert sum(len(step.sizes) for step in steps) == 12
        for step in steps:
            for task in step.tasks():
                assert len(task.attributes["hospital"].unique()) == 2
                assert len(task.attributes["year"].unique()) == 1
        without_class = Grid(axes={"year": 2})(torch.arange(len(y)), y, year=year)
        assert [len(step.y) for step in without_class] == [12, 12]

    def test_no_axis_is_one_task(self):
        (step,) = Grid()(torch.arange(5), torch.zeros(5, dtype=torch.long))
        assert step.sizes == (5,)

    def test_missing_axis_is_named(self):
        with pytest.raises(MedicError, match="domain"):
            Grid(domains=2)(torch.arange(4), torch.arange(4))

    def test_a_batch_that_lacks_a_domain_makes_fewer_tasks(self):
        grid = Grid(3, 2)
        with pytest.warns(UserWarning, match=naming("2 3 domain splits")):
            steps = partition(grid, *full(2, 2, 1))
        assert sum(len(step.sizes) for step in steps) == 4
        y, domain = full(2, 2, 1)
        with pytest.raises(MedicError, match=naming("3 domain splits 2")):
            grid.index(y, domain)

    def test_no_steps_are_not_the_default(self):
        for steps in (0, ()):
            with pytest.raises(MedicError):
                Grid(3, 3, steps=steps)

    def test_many_values_are_checked_quickly(self):
        hospital = torch.arange(400) % 40
        Grid(classes=2, axes={"hospital": 2}).index(torch.arange(400) % 3, hospital=hospital)

    def test_ordered_draws_nothing(self):
        y, domain = full(3, 2, 2)
        for seed in range(3):
            steps = partition(Grid(3, pairing="ordered", seed=seed), y, domain)
            assert [step.domain.unique().tolist() for step in steps] == [[0], [1], [2]]


class TestDiagonal:
    def test_steps_are_the_diagonals_of_one_shared_class_split(self):
        """F1 + G2, then F2 + G1."""
        y, domain = full(3, 6, 2)
        for seed in range(10):
            first, second = partition(Grid(2, 2, pairing="diagonal", seed=seed), y, domain)
            (f1, g2), (f2, g1) = list(first.tasks()), list(second.tasks())
            assert set(f1.y.tolist()) == set(g1.y.tolist())
            assert set(f2.y.tolist()) == set(g2.y.tolist())
            assert not set(f1.y.tolist()) & set(f2.y.tolist())
            assert set(f1.domain.tolist()) == set(f2.domain.tolist())
            assert not set(f1.domain.tolist()) & set(g1.domain.tolist())

    @pytest.mark.parametrize(("splits", "classes"), [(2, 1), (3, 2), (3, 1)])
    def test_a_batch_that_lacks_classes_has_no_sample_twice(self, splits, classes):
        y, domain = full(3, classes, 4)
        with pytest.warns(UserWarning, match=naming("class splits")):
            steps = partition(Grid(splits, splits, pairing="diagonal"), y, domain)
        assert len(steps) == classes
        assert sum(len(step.y) for step in steps) == len(y)

    def test_an_axis_that_is_not_cut(self):
        y, domain = full(3, 6, 2)
        clean = (torch.arange(len(y)) % 5 > 0).long()
        grid = Grid(2, 2, axes={"clean": 1}, pairing="diagonal")
        assert grid.sizes == (2, 2)
        cells = grid.index(y, domain, clean=clean)
        for first, second in (grid.draw(cells, 36) for _ in range(10)):
            assert [{cell[2] for cell in task.cells} for task in first] == [
                {cell[2] for cell in task.cells} for task in reversed(second)
            ]
            for task in (*first, *second):
                there = {(int(d), int(c), int(k)) for d, c, k in zip(domain, clean, y, strict=True)}
                parts = {(cell[0], cell[2]) for cell in task.cells}
                assert set(task.cells) == {cell for cell in there if (cell[0], cell[2]) in parts}

    def test_one_domain(self):
        y, domain = full(1, 4, 2)
        first, second = partition(Grid(1, 2, pairing="diagonal"), y, domain)
        assert first.sizes == second.sizes == (4,)

    def test_partial_classes_leave_no_step_empty(self):
        """Domain 0 has the classes 0 and 1, domain 1 has 2 and 3: a split that keeps them together is drawn again."""
        domain, y = torch.tensor([(0, 0), (0, 1), (1, 2), (1, 3)] * 3).T
        grid = Grid(2, 2, pairing="diagonal")
        cells = grid.index(y, domain)
        for _ in range(100):
            assert len(grid.draw(cells, 3)) == 2

    def test_a_diagonal_has_a_step_for_every_class_split(self):
        assert GridSpec(3, 2, pairing="diagonal").round == (3, 3)

    def test_steps_that_are_no_diagonals(self):
        with pytest.raises(MedicError, match="diagonal"):
            Grid(2, 2, steps=(3, 1), pairing="diagonal")
        with pytest.raises(MedicError, match="diagonal"):
            Grid(pairing="diagonal")


class TestDraw:
    def test_equal_counts_per_cell(self):
        y, domain = full(3, 6, 20)
        grid = Grid(3, 3)
        cells = grid.index(y, domain)
        for _ in range(5):
            steps = grid.draw(cells, 16)
            assert [len(step) for step in steps] == [3, 3, 3]
            for task in itertools.chain(*steps):
                counts = Counter(zip(domain[task.indices].tolist(), y[task.indices].tolist(), strict=True))
                assert list(counts.values()) == [8, 8]
                assert set(counts) == set(task.cells)

    def test_what_is_left_over_goes_to_random_cells(self):
        y, _domain = full(1, 5, 20)
        grid = Grid(classes=1)
        cells, lucky = grid.index(y), Counter()
        for _ in range(60):
            ((task,),) = grid.draw(cells, 12)
            counts = Counter(y[task.indices].tolist())
            assert sorted(counts.values()) == [2, 2, 2, 3, 3]
            lucky.update(label for label, count in counts.items() if count == 3)
        assert min(lucky[label] for label in range(5)) > 10

    def test_a_cell_is_drawn_in_epochs(self):
        y, domain = full(2, 3, 7)
        grid = Grid(2, 3)
        cells, seen = grid.index(y, domain), Counter()
        for _ in range(7):  # 6 tasks of 2 over cells of 7: after 7 draws everything twice
            for task in itertools.chain(*grid.draw(cells, 2)):
                seen.update(task.indices.tolist())
        assert set(seen.values()) == {2}
        assert len(seen) == 42

    def test_a_short_cell_repeats_and_says_so_once(self):
        y, _domain = full(1, 2, 3)
        grid = Grid(classes=2)
        cells = grid.index(y)
        with pytest.warns(UserWarning, match=r"class [01] .*\b3\b.*\b8\b") as said:
            ((first,), (second,)) = grid.draw(cells, 8)
        assert said[0].filename == __file__  # the caller's line, not ours
        with warnings.catch_warnings(record=True) as caught:
            grid.draw(cells, 8)
        assert caught == []
        assert len(first.indices) == len(second.indices) == 8
        assert max(Counter(first.indices.tolist()).values()) == 3

    def test_a_short_cell_is_named_where_names_are_known(self):
        y, domain = full(1, 1, 1)
        grid = Grid(1, 1)
        grid.names = {"domain": ["photo"], "class": ["dog"]}
        with pytest.warns(UserWarning, match=naming("'photo' 'dog' 1 3")):
            grid.draw(grid.index(y, domain), 3)

    def test_pooled_axes_keep_their_frequencies(self):
        """Without axes a task is drawn from everything, so a rare class stays rare."""
        y = torch.tensor([0] * 90 + [1] * 10)
        grid = Grid()
        cells = grid.index(y)
        drawn = torch.cat([y[task.indices] for _ in range(10) for ((task,),) in [grid.draw(cells, 10)]])
        assert drawn.sum() == 10

    def test_partial_classes(self):
        """Domains 0: {0,1,2,3}, 1: {0,1,4,5}, 2: {2,3,4,5}: each domain's own classes are split."""
        has = {0: (0, 1, 2, 3), 1: (0, 1, 4, 5), 2: (2, 3, 4, 5)}
        pairs = torch.tensor([(d, c) for d, classes in has.items() for c in classes] * 9)
        domain, y = pairs.T
        grid = Grid(3, 3)
        cells = grid.index(y, domain)
        for _ in range(10):
            tasks = list(itertools.chain(*grid.draw(cells, 16)))
            assert len(tasks) == 9
            for task in tasks:
                assert len(task.indices) == 16
            for d, classes in has.items():
                mine = [cell for task in tasks for cell in task.cells if cell[0] == d]
                assert sorted(cell[1] for cell in mine) == list(classes)

    def test_an_explicit_grid_that_does_not_fit_is_an_error(self):
        domain, y = torch.tensor([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]).T
        with pytest.raises(MedicError, match=naming("3 class splits domain 1 2")):
            Grid(2, 3).index(y, domain)
        grid = Grid(2, 3)
        grid.names = {"domain": ["photo", "sketch"]}
        with pytest.raises(MedicError, match=naming("'sketch' 2")):
            grid.index(y, domain)

    def test_fitted_follows_the_data(self):
        assert GridSpec(3, 3).fitted(2, 2).sizes == (2, 2)
        one = GridSpec(3, 3).fitted(1, 6)
        assert (one.domains, one.classes, one.sizes) == (1, 3, (1, 1, 1))
        assert GridSpec(2, 2, pairing="diagonal").fitted(1, 6).sizes == (1, 1)
        assert GridSpec().fitted(1, 1).tasks == 1

    def test_class_groups_are_contiguous(self):
        y, _domain = full(1, 65, 2)
        grid = Grid(classes=3, class_groups=10)
        cells = grid.index(y)
        assert [len(group) for group in grid._groups] == [7] * 5 + [6] * 5
        tasks = list(itertools.chain(*grid.draw(cells, 40)))
        assert sorted(len(task.cells) for task in tasks) == [3, 3, 4]
        with pytest.raises(MedicError, match=naming("class_groups 10 11")):
            Grid(classes=2, class_groups=11).index(torch.arange(10))

    def test_separate_steps_take_one_task_of_every_domain(self):
        y, domain = full(3, 6, 10)
        grid = Grid(3, 3, separate="step")
        cells = grid.index(y, domain)
        for _ in range(10):
            for step in grid.draw(cells, 4):
                assert sorted(task.cells[0][0] for task in step) == [0, 1, 2]

    def test_state_continues_the_same_draws(self):
        y, domain = full(3, 6, 11)
        grid = Grid(3, 3, sampling="adaptive", seed=3)
        cells = grid.index(y, domain)

        def advance(grid, cells):
            drawn = []
            for _ in range(6):
                steps = grid.draw(cells, 5)
                indices = torch.cat([task.indices for step in steps for task in step])
                logits = torch.sin(torch.arange(len(indices) * 6.0).view(-1, 6) * indices[:, None])
                grid.observe(logits, y[indices], domain[indices])
                drawn.append(indices)
            return torch.cat(drawn)

        advance(grid, cells)
        state = {"grid": grid.state_dict(), "cells": cells.state_dict()}
        expected = advance(grid, cells)
        again = Grid(3, 3, sampling="adaptive", seed=99)
        cells_again = again.index(y, domain)
        again.load_state_dict(state["grid"])
        cells_again.load_state_dict(state["cells"])
        assert torch.equal(advance(again, cells_again), expected)


class TestAdaptive:
    def test_each_domain_is_split_by_its_own_confusion(self):
        """Domain 0 confuses 0-1 and 2-3, domain 1 confuses 0-2 and 1-3: these never share a task of their domain."""
        confused = {0: (1, 0, 3, 2), 1: (2, 3, 0, 1)}
        y, domain = full(2, 4, 4)
        logits = torch.zeros(len(y), 4)
        for row, (d, c) in enumerate(zip(domain.tolist(), y.tolist(), strict=True)):
            logits[row, confused[d][c]] = 50.0
        grid = Grid(2, 2, sampling="adaptive")
        for _ in range(60):
            grid.observe(logits, y, domain)
        for _ in range(30):
            for step in partition(grid, y, domain):
                for task in step.tasks():
                    d, labels = int(task.domain[0]), set(task.y.tolist())
                    assert not any(confused[d][c] in labels for c in labels)

    def test_groups_are_split_by_the_confusion_of_their_classes(self):
        y = torch.arange(8).repeat(8)
        logits = torch.full((64, 8), 0.0)
        logits[torch.arange(64), (y + 2) % 4 + 4 * (y // 4)] = 50.0  # groups {0,1}-{2,3} and {4,5}-{6,7}
        grid = Grid(classes=2, sampling="adaptive", class_groups=4)
        cells = grid.index(y)
        for _ in range(60):
            grid.observe(logits, y)
        for _ in range(20):
            for task in itertools.chain(*grid.draw(cells, 8)):
                assert {group for (group,) in task.cells} in ({0, 2}, {0, 3}, {1, 2}, {1, 3})

    def test_lag_is_constant(self):
        """What is observed in iteration i is used from iteration i + lag on, not before."""
        grid = Grid(classes=2, sampling="adaptive")
        sharp = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
        lag = grid.sampler.lag
        for iteration in range(2 * lag):
            confusion = grid.sampler.confusion([0])
            assert (confusion is None) == (iteration < lag)
            if confusion is not None:
                seen = iteration - lag + 1
                expected = (1 - 0.9**seen) * sharp.softmax(1).double() + 0.9**seen / 2
                torch.testing.assert_close(confusion, expected)
            grid.observe(sharp, torch.tensor([0, 1]))

    def test_rows_without_samples_keep_their_value(self):
        grid = Grid(classes=2, sampling="adaptive")
        for _ in range(grid.sampler.lag):
            grid.observe(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([1]), torch.tensor([1]))
        assert grid.sampler.confusion([])[1, 0] > 0.39  # only the domain that was seen
        confusion = grid.sampler.confusion([0, 1])
        torch.testing.assert_close(confusion[[0, 2]], torch.full((2, 3), 1 / 3, dtype=torch.float64))
        assert confusion[1, 0] > 1 / 3

    def test_unknown_names(self):
        with pytest.raises(MedicError, match=naming("'adaptve' 'adaptive'")):
            Grid(sampling="adaptve")
        with pytest.raises(MedicError, match=naming("'epoch' task step")):
            Grid(separate="epoch")
        with pytest.raises(MedicError, match=naming("0 class splits")):
            Grid(classes=0)


class TestHeld:
    """A domain that is held is a part of its own, the last."""

    def test_of_two_parts_the_second(self):
        y, domain = full(4, 6, 2)
        grid = Grid(2, 2, pairing="diagonal")
        grid.held_out = 2
        for _ in range(10):
            for step in partition(grid, y, domain):
                others, apart = step.tasks()
                assert apart.domain.unique().tolist() == [2]
                assert others.domain.unique().tolist() == [0, 1, 3]

    def test_of_more_parts_the_others_are_dealt(self):
        y, domain = full(4, 2, 2)
        grid = Grid(3)
        grid.held_out = 1
        parts = set()
        for _ in range(20):
            tasks = [task for step in partition(grid, y, domain) for task in step.tasks()]
            domains = {frozenset(task.domain.tolist()) for task in tasks}
            assert {1} in domains
            assert len(domains) == 3
            parts |= domains
        assert parts == {frozenset(part) for part in ({1}, {0}, {2}, {3}, {0, 2}, {0, 3}, {2, 3})}

    def test_drawn_from_a_dataset_tasks_are_full(self):
        y, domain = full(3, 4, 6)
        grid = Grid(2, 2, pairing="diagonal")
        cells, grid.held_out = grid.index(y, domain), 0
        for step in grid.draw(cells, 8):
            assert [len(task.indices) for task in step] == [8, 8]
            assert [set(domain[task.indices].tolist()) for task in step] == [{1, 2}, {0}]

    @pytest.mark.parametrize("held", [None, 7])
    def test_without_one_or_without_its_samples_it_is_random(self, held):
        y, domain = full(3, 2, 2)
        one, other = Grid(2), Grid(2)
        one.held_out = held
        for _ in range(5):
            assert [s.x.tolist() for s in partition(one, y, domain)] == [
                s.x.tolist() for s in partition(other, y, domain)
            ]

    def test_one_domain_is_not_cut(self):
        y, domain = full(1, 2, 2)
        for grid in (Grid(1), Grid(1, 2)):
            grid.held_out = 0
            assert sorted(torch.cat([step.x for step in partition(grid, y, domain)]).tolist()) == [0, 1, 2, 3]

    def test_it_is_in_the_state(self):
        grid, fresh = Grid(2), Grid(2)
        grid.held_out = 1
        fresh.load_state_dict(grid.state_dict())
        assert fresh.held_out == 1
        assert Grid(grid.spec).held_out is None
