"""The arithmetic of tasks and steps: their numbers, sizes and matched pairs."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from medic.errors import MedicError

T = TypeVar("T")


def chunks(values: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Cut `values` into `parts` contiguous chunks whose sizes differ by at most one, the larger ones first."""
    size, larger = divmod(len(values), parts)
    ends = [size * i + min(i, larger) for i in range(parts + 1)]
    return [tuple(values[a:b]) for a, b in itertools.pairwise(ends)]


def step_sizes(tasks: int, steps: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of tasks in each step.

    `steps` is either these numbers, which must add up to `tasks`, or the number of steps, of which some get
    ⌈tasks / steps⌉ tasks and the others ⌊tasks / steps⌋.
    """
    if isinstance(steps, int):
        if not 1 <= steps <= tasks:
            raise MedicError(
                f"{steps} steps need at least {steps} tasks, but there are {tasks}: use more splits or --repeat; "
                "--iterations sets the length of training"
            )
        return tuple(len(chunk) for chunk in chunks(range(tasks), steps))
    sizes = tuple(steps)
    listed = ",".join(map(str, sizes))
    if any(size < 1 for size in sizes):
        raise MedicError(f"steps {listed}: a step holds at least one of the {tasks} tasks")
    if sum(sizes) != tasks:
        raise MedicError(
            f"steps {listed} hold {sum(sizes)} tasks, but the grid has {tasks}: "
            f"give sizes that add up to {tasks}, or the number of steps"
        )
    return sizes


class MatchedPairs(NamedTuple):
    """The number of pairs of tasks in different steps, whose gradients are matched."""

    exact: int
    """The paper's t_n = Σ_{i<j} m_i m_j."""
    estimate: float
    """The paper's f(n) = t²/2 · (1 - 1/n), equal to t_n when n divides t."""


def matched_pairs(tasks: int, steps: int | Sequence[int]) -> MatchedPairs:
    """Count the pairs of tasks in different steps, for `tasks` tasks dealt over `steps` (see `step_sizes`).

    >>> matched_pairs(9, 3)
    MatchedPairs(exact=27, estimate=27.0)
    """
    sizes = step_sizes(tasks, steps)
    exact = (tasks**2 - sum(size**2 for size in sizes)) // 2
    # One division of integers, so that the estimate is exact where it is a whole number.
    return MatchedPairs(exact, tasks**2 * (len(sizes) - 1) / (2 * len(sizes)))
