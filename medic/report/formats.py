"""A table of results as text: for a terminal, Markdown, LaTeX, CSV or JSON."""

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
from itertools import product
from shutil import get_terminal_size
from typing import Any, NamedTuple

from medic.errors import one_line
from medic.metrics import Metric
from medic.results.cells import Cell
from medic.results.table import AVERAGE, Row, Table
from medic.utils.files import csv_cell

logger = logging.getLogger(__name__)

MISSING = "–"
LEAST = 24
"""Minimum width of a label in a terminal."""


class Reference(NamedTuple):
    """A published number in percent, and the reasons why ours cannot be compared with it."""

    value: float
    obstacles: tuple[str, ...] = ()


Against = Callable[[Metric, Row, str], Reference | None]
"""The reference of a metric, a row and a column, or None."""


class Entry(NamedTuple):
    """A cell of a table for one metric, as it is shown."""

    mean: float | None
    error: float | None = None
    reference: Reference | None = None


def entry(table: Table, row: Row, column: str, metric: Metric, against: Against | None = None) -> Entry:
    """Return the content of a cell. The column may be the average."""
    read = row.reads(metric)
    reference = against(metric, row, column) if against else None
    if column == AVERAGE:
        return Entry(row.average(read, table.columns), None, reference)
    cell = row.cells.get(column, Cell())
    return Entry(cell.mean(read), cell.error(read), reference)


def columns_with_average(table: Table) -> tuple[str, ...]:
    """Return the columns, and their average if there are several."""
    return (*table.columns, AVERAGE) if len(table.columns) > 1 else table.columns


def heading(metric: Metric) -> str:
    """Return the title of a metric, with an arrow if lower is better."""
    return metric.title if metric.higher_is_better else f"{metric.title} ↓"


def written(found: Entry, between: str = " ± ", escape: Callable[[str], str] = str) -> str:
    """Return `84.1 ± 0.3 (84.6, -0.5)`: in brackets the published number and the difference, or the obstacles."""
    mean = None if found.mean is None or not math.isfinite(found.mean) else found.mean
    text = MISSING if mean is None else f"{mean:.1f}"
    if mean is not None and found.error is not None:
        text += f"{between}{found.error:.1f}"
    if found.reference is None:
        return text
    beside = f"{found.reference.value:.1f}"
    if names := found.reference.obstacles:
        beside += f", {escape(', '.join(names[:3]))}{', …' if len(names) > 3 else ''}"
    elif mean is not None:
        beside += f", {mean - found.reference.value:+.1f}"
    return f"{text} ({beside})"


def to_terminal(table: Table, against: Against | None = None, width: int | None = None) -> str:
    """Return a block per metric, with rows as lines. Labels are wrapped if the table is wider than `width`."""
    columns = columns_with_average(table)
    lines = [one_line(table.title)] if table.title else []
    for metric in table.metrics:
        rows = [[row.label, *(written(entry(table, row, c, metric, against)) for c in columns)] for row in table.rows]
        shown = [[one_line(cell) for cell in row] for row in (["", *columns], *rows)]
        lines += [heading(metric), *_aligned(shown, width)]
    return "\n".join([*lines, *(f"note: {one_line(note)}" for note in table.notes)]) + "\n"


def _aligned(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield rows as lines: labels to the left, numbers to the right. This is much faster than a table of rich."""
    sizes = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    label = max(len(row[0]) for row in rows)
    if width is not None:
        label = min(label, max(LEAST, width - sum(sizes) - 2 * len(sizes)))
    for first, *others in rows:
        *before, last = textwrap.wrap(first, label, subsequent_indent="  ") or [""]
        yield from before
        cells = "".join(f"  {cell:>{size}}" for cell, size in zip(others, sizes, strict=True))
        yield f"{last:<{label}}{cells}".rstrip()


def to_markdown(table: Table, against: Against | None = None) -> str:
    """Return a table per metric."""
    columns = columns_with_average(table)
    lines = [_markdown(table.title), ""] if table.title else []
    for metric in table.metrics:
        lines += [_barred([heading(metric), *columns]), _barred(["---", *("---:" for _ in columns)])]
        for row in table.rows:
            lines.append(_barred([row.label, *(written(entry(table, row, c, metric, against)) for c in columns)]))
        lines.append("")
    return "\n".join([*lines, *(f"Note: {_markdown(note)}." for note in table.notes)]).rstrip() + "\n"


def _barred(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    """Escape the characters that have a meaning in Markdown or HTML."""
    return html.escape(re.sub(r"([\\|`*\[\]])", r"\\\1", one_line(text)), quote=False)


def to_latex(table: Table, against: Against | None = None) -> str:
    """Return one table in the paper's layout, with a column per domain and metric. It needs the package booktabs."""
    columns, count = columns_with_average(table), len(table.metrics)
    heads = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(column)}}}" for column in columns)
    titles = [_tex(heading(metric)) for metric in table.metrics]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * count * len(columns)}}}",
        r"\toprule",
        rf" & {heads} \\",
        rf" & {' & '.join(titles * len(columns))} \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [entry(table, row, column, metric, against) for column in columns for metric in table.metrics]
        shown = " & ".join(written(cell, r" $\pm$ ", _tex) for cell in cells)
        lines.append(rf"{_tex(row.label)} & {shown} \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {_tex(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


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
    """Escape the characters that have a meaning in LaTeX."""
    return one_line(text).translate(_TEX)


def rows_of(table: Table, against: Against | None = None) -> list[dict[str, Any]]:
    """Return a row for every cell and metric, for programs; numbers as they are shown."""
    rows = []
    for row, column, metric in product(table.rows, columns_with_average(table), table.metrics):
        cell = entry(table, row, column, metric, against)
        found = {
            "method": row.method,
            "row": row.label,
            table.kind: column,
            "metric": metric.title,
            "key": metric.key,
            "mean": cell.mean,
            "error": cell.error,
            "runs": [str(pick.result.path) for pick in row.cells.get(column, Cell()).picks],  # an average has none
        }
        if cell.reference is not None:
            found |= {"paper": cell.reference.value, "not comparable": ", ".join(cell.reference.obstacles) or None}
        rows.append(found)
    return rows


def to_csv(table: Table, against: Against | None = None) -> str:
    """Return a line for every cell and metric."""
    rows = rows_of(table, against)
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {**row, "runs": " ".join(row["runs"])}
        writer.writerow({name: csv_cell(cell) if isinstance(cell, str) else cell for name, cell in cells.items()})
    return file.getvalue()


def to_json(table: Table, against: Against | None = None) -> str:
    """Return cells, notes and the selection rule."""
    title = {"title": table.title} if table.title else {}
    found = {**title, "selection": table.rule, "cells": rows_of(table, against), "notes": table.notes}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Table, Against | None], str]] = {
    "text": to_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def print_table(table: Table, against: Against | None, form: str) -> None:
    """Print a table in one of `FORMATS`. The notes of a CSV go to standard error."""
    if form == "text" and sys.stdout.isatty():
        print(to_terminal(table, against, get_terminal_size().columns), end="")
        return
    print(FORMATS[form](table, against), end="")
    if form == "csv":
        for note in table.notes:
            logger.warning("%s", note)
