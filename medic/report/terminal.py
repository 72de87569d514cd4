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
from medic.runs.specs.data import NONE

if TYPE_CHECKING:  # it imports torch, which `medic table` does not need
    from medic.runs.directory import Run

SHOWN = tuple(METRICS[key] for key in ("acc", "hscore", "oscr_c", "oscr_b"))
"""Columns of every table of runs: OSCR by both heads, so that methods with different scores can be compared."""
PARTS = tuple(METRICS[key] for key in ("acc_k", "acc_u"))
"""The two parts of the H-score, beside it in the table of a single run."""
FEW = 0.5
"""Share of rejected unknown images below which a threshold is lenient."""

LONG = 200
"""Number of rows from which on a table is too long for rich, which takes a millisecond for each."""


def columns(runs: Sequence["Run"]) -> list[Metric]:
    """Return the columns of a table of runs: `SHOWN`, and OSCR by every other score of a run."""
    scores = dict.fromkeys(run.settings["score"] for run in runs if run.settings["score"] not in ("cls", "bcls"))
    return [*SHOWN, *(find_metric(f"oscr/{score}") for score in scores)]


def run_rows(runs: Sequence["Run"], paper: bool = False) -> list[dict[str, str]]:
    """Return a row per run and target, and with several targets the average of every method.

    With `paper`, these rows follow again by the paper's rule, and two columns name the rule and the weights it selects.
    """
    shown = columns(runs)
    if not paper:
        return _rows(runs, [run.record for run in runs], shown)
    ours = _rows(runs, [run.record for run in runs], shown, "default")
    return ours + _rows(runs, [run.best_evaluation for run in runs], shown, "paper")


def _rows(
    runs: Sequence["Run"], records: Sequence[Mapping[str, Any]], shown: Sequence[Metric], rule: str = ""
) -> list[dict[str, str]]:
    """Return the rows of one record of each run, with the rule that selects it if that has a name."""
    labelled = []
    for run, record in zip(runs, records, strict=True):
        labels = {"method": run.settings["method"]}
        if rule:
            labels |= {"rule": rule, "weights": weights_text(record)}
        labelled += [({"target": target, **labels}, metrics) for target, metrics in record["targets"].items()]
    rows = [_row(labels, [metrics], shown) for labels, metrics in labelled]
    if len({labels["target"] for labels, _ in labelled}) > 1:
        for method in dict.fromkeys(labels["method"] for labels, _ in labelled):
            own = [(labels, metrics) for labels, metrics in labelled if labels["method"] == method]
            weights = {"weights": ""} if rule else {}
            rows.append(_row({**own[0][0], "target": "average", **weights}, [metrics for _, metrics in own], shown))
    return rows


def weights_text(record: Mapping[str, Any]) -> str:
    """Return the origin of the weights that a record measures: `averaged`, or one iteration."""
    return "averaged" if record.get("averaged") else f"iteration {record['iteration']}"


def _row(labels: Mapping[str, str], metrics: Sequence[Mapping[str, Any]], shown: Sequence[Metric]) -> dict[str, str]:
    def mean(metric: Metric) -> str:
        values = [found[metric.key] for found in metrics if metric.key in found]
        return f"{metric.scale * sum(values) / len(values):.1f}" if len(values) == len(metrics) else "–"

    return {**labels, **{metric.title: mean(metric) for metric in shown}}


def print_run(run: "Run") -> None:
    """Print a row per target of a run, and one for unknown classes in its source domains, if it has any.

    A line follows if its threshold is lenient and another threshold could help.
    """
    acc, hscore, *others = columns([run])
    shown, source = [acc, hscore, *PARTS, *others], run.record.get("source")
    labels = {"target": "(sources)", "method": run.settings["method"]}
    rows = _rows([run], [run.record], shown) + ([] if source is None else [_row(labels, [source], shown)])
    if run.settings["target"] == [NONE]:  # these domains were trained on
        rows = [{"held out of": row.pop("target"), **row} for row in rows]
    print_rows(rows, numeric=[metric.title for metric in shown])
    if run.learned and (hint := lenient(run.metrics)):
        print(f"{hint}: `medic calibrate {quote(str(run.path))}` shows other thresholds")


def lenient(metrics: Mapping[str, Any]) -> str:
    """Return a sentence if the threshold accepts most unknown images, unless it already loses more known images."""
    known, unknown = (metrics.get(metric.key) for metric in PARTS)
    if known is None or unknown is None or unknown >= min(FEW, known):
        return ""
    return f"only {100 * unknown:.1f}% of the unknown images are rejected"


def print_runs(runs: Sequence["Run"], paper: bool = False) -> None:
    """Print a row per run and target, with `paper` by both rules."""
    print_rows(run_rows(runs, paper), numeric=[metric.title for metric in columns(runs)])


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
    with console.capture() as shown:
        console.print(table)
    print(shown.get(), end="")  # rich itself would exit if the reader has gone


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
