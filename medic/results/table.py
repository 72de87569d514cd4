"""Result tables, with rows for methods and columns for domains, in several output formats."""

import csv
import html
import io
import json
import logging
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from shutil import get_terminal_size
from typing import Any, NamedTuple

from medic.errors import one_line
from medic.metrics import Metric
from medic.results.cells import Cell, Pick
from medic.results.frames import make_frame
from medic.runs.run import Run
from medic.utils.files import csv_cell

logger = logging.getLogger(__name__)

AVERAGE = "Avg"
MISSING = "–"
LEAST = 24
"""Minimum width of a label in a terminal."""


@dataclass(frozen=True)
class Row:
    """A table row: its label, and its cells by column."""

    label: str
    method: str
    cells: Mapping[str, Cell]
    paper: str | None = None
    """The paper's name for the method."""
    variant: str = ""
    """The paper's name for this variant of the method, if the table has several."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Maps the table's metric keys to the keys that this row reads instead."""

    def reads(self, metric: Metric) -> Metric:
        """Return a table metric with the key that this row reads."""
        return replace(metric, key=self.keys[metric.key]) if metric.key in self.keys else metric

    def average(self, metric: Metric, columns: Sequence[str]) -> float | None:
        """Return the mean over the columns, or None if a column has no value."""
        means = [mean for column in columns if (mean := self.cells.get(column, Cell()).mean(metric)) is not None]
        return sum(means) / len(means) if means and len(means) == len(columns) else None

    def flattery(self, metric: Metric, columns: Sequence[str]) -> float | None:
        """Return how much selection on the target would improve the metric, in points, averaged over the columns."""
        gains = [gain for column in columns if (gain := self.cells.get(column, Cell()).flattery(metric)) is not None]
        return sum(gains) / len(gains) if gains and len(gains) == len(columns) else None

    @property
    def picks(self) -> list[Pick]:
        """The selected evaluations of all cells."""
        return [pick for cell in self.cells.values() for pick in cell.picks]

    @property
    def runs(self) -> list[Run]:
        """The selected runs."""
        return [pick.run for pick in self.picks]


class Reference(NamedTuple):
    """A published number in percent, and the reasons why ours is not comparable with it."""

    value: float
    obstacles: tuple[str, ...] = ()


Against = Callable[[Metric, Row, str], Reference | None]
"""Function that returns the reference for a metric, row and column, or None."""


class Entry(NamedTuple):
    """Displayed content of a table cell, for one metric."""

    mean: float | None
    error: float | None = None
    reference: Reference | None = None


@dataclass(frozen=True)
class Table:
    """A result table: rows, columns, metrics and notes."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...] = ()
    kind: str = "target"
    """What the columns are: `target` or `source` domains, or a `column` of one of the paper's tables."""
    rule: str = "validation"
    """Rule that selects one evaluation per run."""
    title: str = ""

    def __repr__(self) -> str:
        return self.to_text().rstrip("\n")

    def entry(self, row: Row, column: str, metric: Metric, against: Against | None = None) -> Entry:
        """Return the content of a cell. `column` can also be the average."""
        read = row.reads(metric)
        reference = against(metric, row, column) if against else None
        if column == AVERAGE:
            return Entry(row.average(read, self.columns), None, reference)
        cell = row.cells.get(column, Cell())
        return Entry(cell.mean(read), cell.error(read), reference)

    @property
    def columns_with_average(self) -> tuple[str, ...]:
        """The columns, and their average if there are several."""
        return (*self.columns, AVERAGE) if len(self.columns) > 1 else self.columns

    def to_text(self, against: Against | None = None, width: int | None = None) -> str:
        """Return one text block per metric. Labels are wrapped if the table is wider than `width`."""
        columns = self.columns_with_average
        lines = [one_line(self.title)] if self.title else []
        for metric in self.metrics:
            rows = [[row.label, *(written(self.entry(row, c, metric, against)) for c in columns)] for row in self.rows]
            lines += [heading(metric), *aligned([["", *columns], *rows], width)]
        return "\n".join([*lines, *(f"note: {one_line(note)}" for note in self.notes)]) + "\n"

    def to_markdown(self, against: Against | None = None) -> str:
        """Return one Markdown table per metric."""
        columns = self.columns_with_average
        lines = [_markdown(self.title), ""] if self.title else []
        for metric in self.metrics:
            lines += [_barred([heading(metric), *columns]), _barred(["---", *("---:" for _ in columns)])]
            for row in self.rows:
                lines.append(_barred([row.label, *(written(self.entry(row, c, metric, against)) for c in columns)]))
            lines.append("")
        return "\n".join([*lines, *(f"Note: {_markdown(note)}." for note in self.notes)]).rstrip() + "\n"

    def to_latex(self, against: Against | None = None) -> str:
        """Return a LaTeX table in the paper's layout, with one column per domain and metric. Requires booktabs."""
        columns, count = self.columns_with_average, len(self.metrics)
        heads = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(column)}}}" for column in columns)
        titles = [_tex(heading(metric)) for metric in self.metrics]
        lines = [
            rf"\begin{{tabular}}{{l{'r' * count * len(columns)}}}",
            r"\toprule",
            rf" & {heads} \\",
            rf" & {' & '.join(titles * len(columns))} \\",
            r"\midrule",
        ]
        for row in self.rows:
            cells = [self.entry(row, column, metric, against) for column in columns for metric in self.metrics]
            formatted = " & ".join(written(cell, r" $\pm$ ", _tex) for cell in cells)
            lines.append(rf"{_tex(row.label)} & {formatted} \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {_tex(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def cells(self, against: Against | None = None) -> list[dict[str, Any]]:
        """Return one record per cell and metric, with numbers in display units."""
        rows = []
        for row, column, metric in product(self.rows, self.columns_with_average, self.metrics):
            cell = self.entry(row, column, metric, against)
            record = {
                "method": row.method,
                "row": row.label,
                self.kind: column,
                "metric": metric.title,
                "key": metric.key,
                "mean": cell.mean,
                "error": cell.error,
                "runs": [str(pick.run.path) for pick in row.cells.get(column, Cell()).picks],  # empty for an average
            }
            if cell.reference is not None:
                record |= {"paper": cell.reference.value, "not comparable": ", ".join(cell.reference.obstacles) or None}
            rows.append(record)
        return rows

    def to_csv(self, against: Against | None = None) -> str:
        """Return CSV with one line per cell and metric."""
        rows = self.cells(against)
        names = list(dict.fromkeys(name for row in rows for name in row))
        file = io.StringIO()
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = {**row, "runs": " ".join(row["runs"])}
            writer.writerow({name: csv_cell(cell) if isinstance(cell, str) else cell for name, cell in cells.items()})
        return file.getvalue()

    def to_json(self, against: Against | None = None) -> str:
        """Return JSON with the cells, notes and selection rule."""
        title = {"title": self.title} if self.title else {}
        content = {**title, "selection": self.rule, "cells": self.cells(against), "notes": self.notes}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per cell and metric."""
        return make_frame(self.cells())

    def _repr_html_(self) -> str:
        """Return the HTML shown in a notebook."""
        columns = self.columns_with_average
        blocks = []
        for metric in self.metrics:
            rows = [[row.label, *(written(self.entry(row, column, metric)) for column in columns)] for row in self.rows]
            blocks.append(html_table([[heading(metric), *columns], *rows]))
        return "".join([*blocks, *(f"<p>{html.escape(note)}</p>" for note in self.notes)])


def heading(metric: Metric) -> str:
    """Return a metric's title, with a down arrow if lower is better."""
    return metric.title if metric.higher_is_better else f"{metric.title} ↓"


def written(entry: Entry, between: str = " ± ", escape: Callable[[str], str] = str) -> str:
    """Format a cell as `84.1 ± 0.3 (84.6, -0.5)`.

    The brackets contain the published number and the difference, or the reasons why there is no difference.
    """
    mean = None if entry.mean is None or not math.isfinite(entry.mean) else entry.mean
    text = MISSING if mean is None else f"{mean:.1f}"
    if mean is not None and entry.error is not None:
        text += f"{between}{entry.error:.1f}"
    if entry.reference is None:
        return text
    beside = f"{entry.reference.value:.1f}"
    if names := entry.reference.obstacles:
        beside += f", {escape(', '.join(names[:3]))}{', …' if len(names) > 3 else ''}"
    elif mean is not None:
        beside += f", {mean - entry.reference.value:+.1f}"
    return f"{text} ({beside})"


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Yield rows as aligned lines: labels left, numbers right. This is much faster than rich.

    Labels are wrapped if the lines are longer than `width`.
    """
    cleaned = [[one_line(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in list(zip(*cleaned, strict=True))[1:]]
    label = max(len(row[0]) for row in cleaned)
    if width is not None:
        label = min(label, max(LEAST, width - sum(sizes) - 2 * len(sizes)))
    for first, *others in cleaned:
        *before, last = textwrap.wrap(first, label, subsequent_indent="  ") or [""]
        yield from before
        cells = "".join(f"  {cell:>{size}}" for cell, size in zip(others, sizes, strict=True))
        yield f"{last:<{label}}{cells}".rstrip()


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as an HTML table. The first row has the titles."""
    head, *body = ([html.escape(cell) for cell in row] for row in rows)
    lines = ["".join(f"<th>{cell}</th>" for cell in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in body]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _barred(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    """Escape characters that are special in Markdown and HTML."""
    return html.escape(re.sub(r"([\\|`*\[\]])", r"\\\1", one_line(text)), quote=False)


_TEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "↓": r"$\downarrow$",
    }
)


def _tex(text: str) -> str:
    """Escape characters that are special in LaTeX."""
    return one_line(text).translate(_TEX)


FORMATS: Mapping[str, Callable[[Table, Against | None], str]] = {
    "text": Table.to_text,
    "markdown": Table.to_markdown,
    "latex": Table.to_latex,
    "csv": Table.to_csv,
    "json": Table.to_json,
}


def print_table(table: Table, against: Against | None, form: str) -> None:
    """Print a table in one of `FORMATS`. With CSV, the notes are logged instead of printed."""
    if form == "text" and sys.stdout.isatty():
        print(table.to_text(against, get_terminal_size().columns), end="")
        return
    print(FORMATS[form](table, against), end="")
    if form == "csv":
        for note in table.notes:
            logger.warning("%s", note)
