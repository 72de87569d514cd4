"""Print rows and tables in the terminal, or as JSON."""

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
"""Columns of run tables. OSCR is shown for both heads, so that methods with different scores can be compared."""
PARTS = tuple(METRICS[key] for key in ("acc_k", "acc_u"))
"""The two components of the H-score, shown next to it in the table of a single run."""
FEW = 0.5
"""Share of rejected unknown images below which a threshold is considered lenient."""

BLOCK = 8
"""Maximum number of columns in a table of scores, so that it fits into 100 characters."""
LONG = 200
"""Number of rows above which rich is too slow, at about a millisecond per row."""


def _columns(run: "Run") -> list[Metric]:
    """Return a run's columns: accuracy, H-score and its components, and OSCR for both heads and the run's score."""
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
    """Print one row per target, their average and, if available, a row for open-set results on the sources.

    If the threshold is lenient and another one could help, print a hint.
    """
    columns, method, record = _columns(run), run.config.run.method, run.record
    measured = dict(record["targets"])
    if len(measured) > 1:
        measured["average"] = record["target"]
    if record.get("source") is not None:
        measured["(sources)"] = record["source"]
    first = "held out from" if not run.config.data.target else "target"  # held-out images of training domains
    rows = [_row({first: name, "method": method}, metrics, columns) for name, metrics in measured.items()]
    print_rows(rows, numeric=[column.title for column in columns])
    if run.learned and (hint := lenient(run.metrics)):
        print(f"{hint}: compare other thresholds with `medic calibrate {quote(str(run.path))}`")


def report_command(run: "Run") -> str:
    """Return the command that writes a report of a run."""
    root = run.config.data.root
    return f"medic report {quote(str(run.path))}" + ("" if root is None else f" --root {quote(str(root))}")


def lenient(metrics: Mapping[str, Any]) -> str:
    """Return a hint if the threshold accepts most unknown images, unless it already rejects too many known ones."""
    known, unknown = (metrics.get(metric.key) for metric in PARTS)
    if known is None or unknown is None or unknown >= min(FEW, known):
        return ""
    return f"only {100 * unknown:.1f}% of the unknown images are rejected"


def print_blocks(rows: Sequence[Mapping[str, Any]], first: str, columns: Sequence[str]) -> None:
    """Print a wide table of numbers as several tables, each starting with the `first` column."""
    for start in range(0, len(columns), BLOCK):
        part = columns[start : start + BLOCK]
        if start:
            print()
        print_rows([{name: row[name] for name in (first, *part)} for row in rows], numeric=part)


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool = False, numeric: Sequence[str] = ()) -> None:
    """Print rows, which must share the same keys, as a table or as JSON. `numeric` columns are right-aligned."""
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
    # Do not wrap rows in files and pipes.
    console = Console() if sys.stdout.isatty() else Console(width=sys.maxsize)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # rich would exit on a closed pipe


def _aligned(rows: Sequence[Mapping[str, Any]], numeric: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a long table, a hundred times faster than rich. Long lines are not wrapped."""
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
    """Print a title, followed by one line per non-empty fact."""
    print(title)
    for name, value in facts:
        if value:
            print(f"  {name:<12} {value}")
