"""Paired t-test between two table rows. It compares columns, because runs with the same target share its images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from medic.errors import MedicError
from medic.metrics import Metric
from medic.results.table import Row

FEWEST = 3
"""Minimum number of differences for an interval. With two, the interval would be too wide to be useful."""


@dataclass(frozen=True)
class Comparison:
    """Mean difference of a metric in points, its 95% interval, and the p-value of a paired t-test.

    With fewer than three differences, the interval and the p-value are None.
    """

    metric: str
    pairs: int
    """Number of run pairs with the same column and trial."""
    columns: int
    """Number of columns compared. With one column, the test compares its trials."""
    difference: float
    low: float | None
    high: float | None
    p: float | None

    def test(self, kind: str) -> str:
        """Describe the test; `kind` says what the columns are, such as `target`."""
        if self.low is None:
            over = f"{kind}s" if self.columns > 1 else "seeds"
            return f"an interval requires at least three {over} to compare: train runs with more {over}"
        if self.columns > 1:
            return f"paired t-test over {self.columns} {kind}s, each averaged over its seeds"
        return f"paired t-test over {self.pairs} seeds of one {kind}: the interval does not apply to other {kind}s"


def compare(base: Row, row: Row, metric: Metric, columns: Sequence[str]) -> Comparison:
    """Return the difference `row` minus `base`, over the columns and trials that both rows have."""
    before, after = _values(base, metric, columns), _values(row, metric, columns)
    shared = sorted(before.keys() & after.keys(), key=str)
    if not shared:
        raise MedicError(
            f"{base.label} and {row.label} have no targets and seeds in common: train both with the same ones"
        )
    differences = {key: after[key] - before[key] for key in shared}
    means = column_means(differences)
    values = means if len(means) > 1 else list(differences.values())
    interval = t_interval(values) if len(values) >= FEWEST else (fmean(values), None, None, None)
    return Comparison(metric.title, len(shared), len(means), *interval)


def column_means(values: Mapping[tuple[str, Any], float]) -> list[float]:
    """Return the mean of each column over its trials; `values` are keyed by column and trial."""
    columns: dict[str, list[float]] = {}
    for (column, _), value in values.items():
        columns.setdefault(column, []).append(value)
    return [fmean(several) for several in columns.values()]


def t_interval(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the mean of two or more values, its 95% t-interval, and the p-value for a mean of zero.

    >>> [round(number, 3) for number in t_interval([2.0, 3.0, 4.0])]
    [3.0, 0.516, 5.484, 0.035]
    """
    mean = math.fsum(values) / len(values)
    if all(value == mean for value in values):  # without variance, the test is undefined
        return mean, mean, mean, float(mean == 0)
    test = stats.ttest_1samp(values, 0)
    low, high = test.confidence_interval(0.95)
    return mean, float(low), float(high), float(test.pvalue)


def _values(row: Row, metric: Metric, columns: Sequence[str]) -> dict[tuple[str, Any], float]:
    """Return a metric for each run in a row, keyed by column and trial."""
    values = {(c, pick.run.trial): pick.value(row.reads(metric)) for c in columns for pick in row.cells[c].picks}
    return {key: value for key, value in values.items() if value is not None}
