"""A table of results as text: for a terminal, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, NamedTuple

from medic.tables.cells import Cell
from medic.tables.table import AVERAGE, Row, Table

MISSING = "–"
LEAST = 24
"""The columns of a terminal that a label has at the least, however wide the table is."""


class Reference(NamedTuple):
    """A published number, in percent, and what differs, if ours may not be compared with it."""

    value: float
    obstacles: tuple[str, ...] = ()


Against = Callable[[str, Row, str], Reference | None]
"""The reference of a metric's title, a row and a column, if there is one."""


class Entry(NamedTuple):
    """A cell of a table, for one metric: in percent."""

    mean: float | None
    error: float | None = None
    reference: Reference | None = None


def entry(table: Table, row: Row, column: str, metric: str, against: Against | None = None) -> Entry:
    """What stands in a cell; the column may be the average."""
    read = row.reads(metric, table.metrics[metric])
    reference = against(metric, row, column) if against else None
    if column == AVERAGE:
        return Entry(row.average(read, table.columns), None, reference)
    cell = row.cells.get(column, Cell())
    return Entry(cell.mean(read), cell.error(read), reference)


def columns_with_average(table: Table) -> tuple[str, ...]:
    """The columns, with their average where there are several."""
    return (*table.columns, AVERAGE) if len(table.columns) > 1 else table.columns


def written(found: Entry, between: str = " ± ", escape: Callable[[str], str] = str) -> str:
    """`84.1 ± 0.3`, and the published number with the difference, or the obstacles, in brackets."""
    text = MISSING if found.mean is None else f"{found.mean:.1f}"
    if found.error is not None:
        text += f"{between}{found.error:.1f}"
    if found.reference is None:
        return text
    beside = f"{found.reference.value:.1f}"
    if words := found.reference.obstacles:
        beside += f", {escape(', '.join(words[:3]))}{', …' if len(words) > 3 else ''}"
    elif found.mean is not None:
        beside += f", {found.mean - found.reference.value:+.1f}"
    return f"{text} ({beside})"


def to_terminal(table: Table, against: Against | None, width: int | None) -> str:
    """A block per metric, methods as rows and domains as columns; labels are wrapped where there is a width to fit."""
    columns = columns_with_average(table)
    lines = _titled(table)
    for metric in table.metrics:
        rows = [
            [row.label, *(written(entry(table, row, column, metric, against)) for column in columns)]
            for row in table.rows
        ]
        lines += [metric, *_aligned([["", *columns], *rows], width)]
    return "\n".join([*lines, *(f"note: {note}" for note in table.notes)]) + "\n"


def _aligned(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Rows as lines, their first cells to the left and all others to the right; plain, as thousands are soon made."""
    numbers = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    label = max(len(row[0]) for row in rows)
    if width is not None:
        label = min(label, max(LEAST, width - sum(numbers) - 2 * len(numbers)))
    for first, *others in rows:
        *before, last = textwrap.wrap(first, label, subsequent_indent="  ") or [""]
        yield from before
        cells = "".join(f"  {cell:>{size}}" for cell, size in zip(others, numbers, strict=True))
        yield f"{last:<{label}}{cells}".rstrip()


def to_markdown(table: Table, against: Against | None) -> str:
    """A table per metric."""
    lines = [part for title in _titled(table) for part in (title, "")]
    for metric in table.metrics:
        head = [metric, *columns_with_average(table)]
        lines += [_barred(head), _barred(["---", *("---:" for _ in head[1:])])]
        for row in table.rows:
            cells = [entry(table, row, column, metric, against) for column in head[1:]]
            lines.append(_barred([row.label, *map(written, cells)]))
        lines.append("")
    return "\n".join([*lines, *(f"Note: {note}." for note in table.notes)]).rstrip() + "\n"


def _titled(table: Table) -> list[str]:
    return [table.title] if table.title else []


def _barred(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_latex(table: Table, against: Against | None) -> str:
    """One table as the paper has it: for every domain a column per metric. It needs the package booktabs."""
    columns, metrics = columns_with_average(table), list(table.metrics)
    count = len(metrics)
    heads = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(column)}}}" for column in columns)
    lines = [
        rf"\begin{{tabular}}{{l{'r' * count * len(columns)}}}",
        r"\toprule",
        rf" & {heads} \\",
        " & " + " & ".join(_tex(metric) for _ in columns for metric in metrics) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [entry(table, row, column, metric, against) for column in columns for metric in metrics]
        shown = " & ".join(written(cell, r" $\pm$ ", _tex) for cell in cells)
        lines.append(rf"{_tex(row.label)} & {shown} \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


_TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
"""What stands for characters that mean something to LaTeX."""


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def rows_of(table: Table, against: Against | None) -> list[dict[str, Any]]:
    """A row for every cell and metric, for programs; numbers in percent."""
    found = []
    for row in table.rows:
        for column in columns_with_average(table):
            for metric in table.metrics:
                cell = entry(table, row, column, metric, against)
                runs = [] if column == AVERAGE else [str(p.result.path) for p in row.cells.get(column, Cell()).picks]
                reference = cell.reference
                found.append(
                    {
                        "method": row.method,
                        "row": row.label,
                        table.kind: column,
                        "metric": metric,
                        "mean": cell.mean,
                        "error": cell.error,
                        "runs": runs,
                        **(
                            {}
                            if reference is None
                            else {"paper": reference.value, "not comparable": ", ".join(reference.obstacles) or None}
                        ),
                    }
                )
    return found


def to_csv(table: Table, against: Against | None) -> str:
    """A line for every cell and metric."""
    rows = rows_of(table, against)
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "runs": " ".join(row["runs"])} for row in rows)
    return file.getvalue()


def to_json(table: Table, against: Against | None) -> str:
    """All of it."""
    title = {"title": table.title} if table.title else {}
    found = {**title, "selection": table.rule, "cells": rows_of(table, against), "notes": table.notes}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Table, Against | None], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}
"""All but the terminal's, which has a width."""


def print_table(table: Table, against: Against | None, form: str) -> None:
    """Print a table, as `text` or in one of `FORMATS`; notes that have no place in it go to the errors."""
    if form == "text":
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        print(to_terminal(table, against, width), end="")
        return
    print(FORMATS[form](table, against), end="")
    if form == "csv":
        for note in table.notes:
            print(f"medic: note: {note}", file=sys.stderr)
