"""The arithmetic of tasks and steps."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medic.errors import MedicError
from medic.tasks import chunks, matched_pairs, step_sizes


@given(st.integers(0, 60), st.integers(1, 12))
def test_chunks_cover_in_order_with_larger_ones_first(count, parts):
    cut = chunks(range(count), parts)
    assert [value for chunk in cut for value in chunk] == list(range(count))
    sizes = [len(chunk) for chunk in cut]
    assert len(sizes) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_the_papers_step_sizes():
    assert [step_sizes(9, n) for n in (1, 2, 3, 4, 5, 7, 9)] == [
        (9,), (5, 4), (3, 3, 3), (3, 2, 2, 2), (2, 2, 2, 2, 1), (2, 2, 1, 1, 1, 1, 1), (1,) * 9,
    ]  # fmt: skip
    assert step_sizes(9, (4, 4, 1)) == (4, 4, 1)


@pytest.mark.parametrize("steps", [0, 10, -1, (3, 3), (3, 3, 3, 0), (5, 5, -1), ()])
def test_steps_that_do_not_add_up(steps):
    with pytest.raises(MedicError, match="9"):
        step_sizes(9, steps)


@given(st.integers(1, 40), st.data())
def test_matched_pairs_count_pairs_of_tasks_in_different_steps(tasks, data):
    n = data.draw(st.integers(1, tasks))
    sizes = step_sizes(tasks, n)
    step_of = [step for step, size in enumerate(sizes) for _ in range(size)]
    pairs = sum(step_of[i] != step_of[j] for i in range(tasks) for j in range(i))
    assert matched_pairs(tasks, n).exact == pairs


@given(st.integers(2, 60))
def test_matched_pairs_grow_with_the_number_of_steps(tasks):
    counts = [matched_pairs(tasks, n).exact for n in range(1, tasks + 1)]
    assert all(a < b for a, b in itertools.pairwise(counts))


@given(st.integers(1, 30), st.integers(1, 30))
def test_estimate_is_exact_when_steps_divide_tasks(per_step, n):
    exact, estimate = matched_pairs(per_step * n, n)
    assert estimate == exact


@given(st.integers(1, 60), st.data())
def test_estimate_bounds_the_count(tasks, data):
    """Equal steps match the most pairs, so f(n) is never below t_n."""
    exact, estimate = matched_pairs(tasks, data.draw(st.integers(1, tasks)))
    assert exact <= estimate + 1e-9
