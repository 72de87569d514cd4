"""Rows and tables for a terminal, or as JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from medic.errors import one_line
from medic.metrics import METRICS, Metric, find_metric

if TYPE_CHECKING:  # it imports torch, which `medic table` does not need
    from medic.runs.run import Run

COLUMNS = tuple(METRICS[key] for key in ("acc", "hscore", "oscr_c", "oscr_b"))
"""Columns of every table of runs: OSCR by both heads, so that methods with different scores can be compared."""
PARTS = tuple(METRICS[key] for key in ("acc_k", "acc_u"))
"""The two parts of the H-score, beside it in the table of a single run."""
FEW = 0.5
"""Share of rejected unknown images below which a threshold is lenient."""

BLOCK = 8
"""Number of columns of a table of scores, which then fits into 100 characters."""
LONG = 200
"""Number of rows from which on a table is too long for rich, which takes a millisecond for each."""


def _columns(run: "Run") -> list[Metric]:
    """Return the columns of a run: accuracy, the H-score and its parts, and OSCR by both heads and the run's score."""
    acc, hscore, *oscr = COLUMNS
    score = run.config.evaluation.score
    return [acc, hscore, *PARTS, *oscr, *([] if score in ("cls", "bcls") else [find_metric(f"oscr/{score}")])]


def _row(labels: Mapping[str, str], metrics: Mapping[str, Any], columns: Sequence[Metric]) -> dict[str, str]:
    return {
        **labels,
        **{
            column.title: f"{column.scale * metrics[column.key]:.1f}" if column.key in metrics else "–"
            for column in columns
        },
    }


def print_run(run: "Run") -> None:
    """Print a row per target of a run, their average, and a row for unknown classes in its source domains, if any.

    A line follows if its threshold is lenient and another threshold could help.
    """
    columns, method, record = _columns(run), run.config.run.method, run.record
    measured = dict(record["targets"])
    if len(measured) > 1:
        measured["average"] = record["target"]
    if record.get("source") is not None:
        measured["(sources)"] = record["source"]
    first = "held out of" if not run.config.data.target else "target"  # the former were trained on
    rows = [_row({first: name, "method": method}, metrics, columns) for name, metrics in measured.items()]
    print_rows(rows, numeric=[column.title for column in columns])
    if run.learned and (hint := lenient(run.metrics)):
        print(f"{hint}: `medic calibrate {quote(str(run.path))}` shows other thresholds")


def lenient(metrics: Mapping[str, Any]) -> str:
    """Return a sentence if the threshold accepts most unknown images, unless it already loses more known images."""
    known, unknown = (metrics.get(metric.key) for metric in PARTS)
    if known is None or unknown is None or unknown >= min(FEW, known):
        return ""
    return f"only {100 * unknown:.1f}% of the unknown images are rejected"


def print_blocks(rows: Sequence[Mapping[str, Any]], first: str, columns: Sequence[str]) -> None:
    """Print a table with many columns of numbers as several tables, below each other, with the same `first` column."""
    for start in range(0, len(columns), BLOCK):
        part = columns[start : start + BLOCK]
        if start:
            print()
        print_rows([{name: row[name] for name in (first, *part)} for row in rows], numeric=part)


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool = False, numeric: Sequence[str] = ()) -> None:
    """Print rows with the same keys as a table, or as JSON. `numeric` columns are aligned to the right."""
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if len(rows) > LONG:
        print("\n".join(_aligned(rows, numeric)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in rows[0]:
        table.add_column(title, justify="right" if title in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row.values()))  # as `Text`, since values may contain brackets
    # In a file or a pipe, rows must not be wrapped.
    console = Console() if sys.stdout.isatty() else Console(width=sys.maxsize)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # rich itself would exit if the reader has gone


def _aligned(rows: Sequence[Mapping[str, Any]], numeric: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a long table, in a hundredth of the time that rich takes; long lines are not wrapped."""
    cells = [[one_line(title), *(one_line(row[title]) for row in rows)] for title in rows[0]]
    widths = [max(map(cell_len, column)) for column in cells]
    right = [title in numeric for title in rows[0]]
    for line in zip(*cells, strict=True):
        padded = [
            " " * (width - cell_len(text)) + text if justified else text + " " * (width - cell_len(text))
            for text, width, justified in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Print a title, and below it a line for each named fact that is not empty."""
    print(title)
    for name, value in facts:
        if value:
            print(f"  {name:<12} {value}")
