"""Compute step sizes and matched pairs of tasks."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from medic.errors import MedicError

T = TypeVar("T")


def chunks(values: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Cut `values` into `parts` contiguous chunks whose sizes differ by at most one. Larger chunks come first."""
    size, larger = divmod(len(values), parts)
    ends = [size * i + min(i, larger) for i in range(parts + 1)]
    return [tuple(values[a:b]) for a, b in itertools.pairwise(ends)]


def step_sizes(tasks: int, steps: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of tasks in each step.

    `steps` is the number of steps, or a sequence of step sizes that add up to `tasks`. A number of steps divides the
    tasks as evenly as possible.
    """
    if isinstance(steps, int):
        if not 1 <= steps <= tasks:
            raise MedicError(
                f"{steps} steps require at least {steps} tasks, got {tasks}: use more splits or --repeat; "
                "--iterations sets the training length"
            )
        return tuple(len(chunk) for chunk in chunks(range(tasks), steps))
    sizes = tuple(steps)
    listed = ",".join(map(str, sizes))
    if any(size < 1 for size in sizes):
        raise MedicError(f"each step must hold at least one of the {tasks} tasks, got steps {listed}")
    if sum(sizes) != tasks:
        raise MedicError(
            f"steps {listed} hold {sum(sizes)} tasks, but the grid has {tasks}: "
            f"pass sizes that add up to {tasks}, or the number of steps"
        )
    return sizes


class MatchedPairs(NamedTuple):
    """The number of task pairs in different steps. Training matches the gradients of these pairs."""

    exact: int
    """The paper's t_n = Σ_{i<j} m_i m_j."""
    estimate: float
    """The paper's f(n) = t²/2 · (1 - 1/n), equal to t_n when n divides t."""


def matched_pairs(tasks: int, steps: int | Sequence[int]) -> MatchedPairs:
    """Count the task pairs in different steps. `step_sizes` describes the arguments.

    >>> matched_pairs(9, 3)
    MatchedPairs(exact=27, estimate=27.0)
    """
    sizes = step_sizes(tasks, steps)
    exact = (tasks**2 - sum(size**2 for size in sizes)) // 2
    # A single integer division keeps whole-number estimates exact.
    return MatchedPairs(exact, tasks**2 * (len(sizes) - 1) / (2 * len(sizes)))
