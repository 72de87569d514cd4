"""Whether one system is better than another: their differences over targets and seeds, in pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from medic.errors import MedicError, counted
from medic.tables.cells import Metric
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


def compare(first: Row, second: Row, title: str, metric: Metric, columns: Sequence[str]) -> Comparison:
    """How much more the second has than the first, over the targets and trials that both have."""
    differences = []
    for column in columns:
        ours, theirs = (
            {pick.trial: pick.value(row.reads(title, metric).key) for pick in row.cells[column].picks}
            for row in (first, second)
        )
        for trial in ours.keys() & theirs.keys():
            before, after = ours[trial], theirs[trial]
            if before is not None and after is not None:
                differences.append(metric.scale * (after - before))
    if len(differences) < 2:
        raise MedicError(
            f"{first.label} and {second.label} share {counted(len(differences), 'run')}: a comparison needs 2 or more"
        )
    mean = sum(differences) / len(differences)
    spread = math.sqrt(sum((value - mean) ** 2 for value in differences) / (len(differences) - 1))
    error = spread / math.sqrt(len(differences))
    half = error * float(stats.t.ppf(0.975, len(differences) - 1))
    p = 2 * float(stats.t.sf(abs(mean) / error, len(differences) - 1)) if error else float(mean == 0)
    return Comparison(title, len(differences), mean, mean - half, mean + half, p)
