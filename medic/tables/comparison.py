"""A paired t-test between two rows of a table, over targets and seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    differences = []
    for column in columns:
        before, after = (
            {pick.result.trial: pick.value(one.reads(metric)) for pick in one.cells[column].picks}
            for one in (base, row)
        )
        for trial in before.keys() & after.keys():
            first, second = before[trial], after[trial]
            if first is not None and second is not None:
                differences.append(second - first)
    count = len(differences)
    if count < 2:
        raise MedicError(f"{base.label} and {row.label} share {counted(count, 'run')}: a comparison needs 2 or more")
    mean = sum(differences) / count
    error = math.sqrt(sum((value - mean) ** 2 for value in differences) / (count - 1) / count)
    half = error * float(stats.t.ppf(0.975, count - 1))
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Comparison(metric.title, count, mean, mean - half, mean + half, p)
