"""Paired t-test between two table rows. It compares columns, because runs with the same target share its images."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from medic.errors import MedicError, one_line
from medic.metrics import Metric
from medic.results import notes
from medic.results.frames import make_frame
from medic.results.table import MISSING, Row, Table, aligned, html_table
from medic.results.tabulate import column_of, find_row

FEWEST = 3
"""Minimum number of differences for an interval. With two, the interval would be too wide to be useful."""


@dataclass(frozen=True)
class Difference:
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

    def cells(self) -> list[str]:
        """Format the metric, the difference, the interval, the p-value and the number of pairs."""
        interval = MISSING if self.low is None else f"{self.low:+.2f} … {self.high:+.2f}"
        p = MISSING if self.p is None else f"{self.p:.3f}" if self.p >= 0.001 else "< 0.001"
        return [self.metric, f"{self.difference:+.2f}", interval, p, str(self.pairs)]

    def test(self, kind: str) -> str:
        """Describe the test; `kind` says what the columns are, such as `target`."""
        if self.low is None:
            over = f"{kind}s" if self.columns > 1 else "seeds"
            return f"an interval requires at least three {over} to compare: train runs with more {over}"
        if self.columns > 1:
            return f"paired t-test over {self.columns} {kind}s, each averaged over its seeds"
        return f"paired t-test over {self.pairs} seeds of one {kind}: the interval does not apply to other {kind}s"


@dataclass(frozen=True)
class Comparison:
    """The difference between two table rows, with one entry per metric."""

    of: str
    """Label of the row."""
    over: str
    """Label of the base row, which is subtracted."""
    kind: str
    """Kind of domains in the table's columns: `target` or `source`."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """Notes on the conditions, and on reasons why the rows may not be comparable."""

    def __repr__(self) -> str:
        """Return the text that `medic table --compare` prints."""
        lines = [one_line(f"{self._title}:"), *aligned(self._rows), *self._tests]
        return "\n".join([*lines, *(f"note: {one_line(note)}" for note in self.notes)])

    def _repr_html_(self) -> str:
        """Return the HTML shown in a notebook."""
        title, *lines = (f"<p>{html.escape(line)}</p>" for line in (self._title, *self._tests, *self.notes))
        return "".join([title, html_table(self._rows), *lines])

    def records(self) -> list[dict[str, Any]]:
        """Return one record per metric, with numbers in points."""
        labels = {"of": self.of, "over": self.over}
        return [{**labels, **asdict(one), "test": one.test(self.kind)} for one in self.differences]

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per metric, and numbers in points."""
        return make_frame(self.records())

    @property
    def _title(self) -> str:
        return f"{self.of} minus {self.over}, in percentage points, paired by {self.kind} and seed"

    @property
    def _rows(self) -> list[list[str]]:
        return [["metric", "difference", "95% interval", "p", "pairs"], *(one.cells() for one in self.differences)]

    @property
    def _tests(self) -> list[str]:
        return list(dict.fromkeys(one.test(self.kind) for one in self.differences))


def compare(table: Table, base: str, row: str) -> Comparison:
    """Return the difference `row` minus `base` in every metric of a table.

    Args:
        table: The table with both rows.
        base: Label or method of the base row.
        row: Label or method of the other row.
    """
    first, second = rows = [find_row(table, label) for label in (base, row)]
    if first is second:
        raise MedicError(f"{base!r} and {row!r} are the same row: pass two different rows")
    runs = [*first.runs, *second.runs]
    about = (
        *notes.learning(rows),
        *notes.selection(table.rule),
        *notes.scores(rows, table.metrics),
        *notes.target_labels(table.metrics),
        *notes.averaging(rows),
        *notes.unmeasured(rows, table.metrics),
        *notes.mixed_datasets((column_of(run, table.kind), run) for run in runs),
        *notes.differences(runs),
    )
    differences = tuple(compare_metric(first, second, metric, table.columns) for metric in table.metrics)
    return Comparison(second.label, first.label, table.kind, differences, about)


def compare_metric(base: Row, row: Row, metric: Metric, columns: Sequence[str]) -> Difference:
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
    return Difference(metric.title, len(shared), len(means), *interval)


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
