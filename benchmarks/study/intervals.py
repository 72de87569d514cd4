"""Means of values by target and seed, and 95% intervals for them by the t distribution."""

from collections.abc import Sequence
from statistics import fmean

from medic.results.comparison import column_means, t_interval

Values = dict[tuple[str, int], float]
"""Values by target and seed."""


def mean(values: Values) -> float:
    """Return the mean over targets of the means over seeds."""
    return fmean(column_means(values))


def target_interval(differences: Values) -> tuple[float, float]:
    """Return a mean difference and the half width of its interval over targets.

    Seeds of one target share its images, so a target counts once, with its mean over seeds.
    """
    return _interval(column_means(differences))


def seed_interval(differences: Values) -> tuple[float, float, int]:
    """Return a mean difference, the half width of its interval over seeds, and the number of seeds.

    The targets are fixed. A seed counts once, with its mean over targets, if it has all of them.
    """
    targets = {target for target, _ in differences}
    seeds = sorted({seed for _, seed in differences})
    complete = [seed for seed in seeds if all((target, seed) in differences for target in targets)]
    means = [fmean(differences[target, seed] for target in targets) for seed in complete]
    return *_interval(means), len(means)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return fmean(values), float("nan")
    center, low, high, _ = t_interval(values)
    return center, (high - low) / 2
