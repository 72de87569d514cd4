"""A paired t-test between two rows of a table, over targets and seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from medic.errors import MedicError, counted
from medic.metrics import Metric
from medic.tables.table import Row


@dataclass(frozen=True)
class Comparison:
    """The mean difference of a metric in points, its 95 % interval, and the p-value of a paired t-test."""

    metric: str
    pairs: int
    difference: float
    low: float
    high: float
    p: float


def compare(base: Row, row: Row, metric: Metric, columns: Sequence[str]) -> Comparison:
    """Return the difference of `row` to `base` over the targets and trials that both have."""
    before, after = _values(base, metric, columns), _values(row, metric, columns)
    shared = sorted(before.keys() & after.keys(), key=str)
    if len(shared) < 2:
        number = counted(len(shared), "run")
        raise MedicError(f"{base.label} and {row.label} share {number}: a comparison needs 2 or more")
    differences = [after[key] - before[key] for key in shared]
    mean = math.fsum(differences) / len(shared)
    if all(difference == mean for difference in differences):  # without variance, the test is undefined
        return Comparison(metric.title, len(shared), mean, mean, mean, float(mean == 0))
    test = stats.ttest_1samp(differences, 0)
    low, high = test.confidence_interval(0.95)
    return Comparison(metric.title, len(shared), mean, float(low), float(high), float(test.pvalue))


def _values(row: Row, metric: Metric, columns: Sequence[str]) -> dict[Any, float]:
    """Return a metric of every run of a row, by column and trial."""
    values = {(c, pick.result.trial): pick.value(row.reads(metric)) for c in columns for pick in row.cells[c].picks}
    return {key: value for key, value in values.items() if value is not None}
