"""Tables of runs, for a terminal or as JSON."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from medic.runs.directory import Run

METRICS = {
    "Acc": "acc",
    "H-score": "hscore",
    "OSCR cls": "oscr_c",
    "OSCR bcls": "oscr_b",
}
"""Column titles of the paper's metrics and their keys. OSCR has one column per score."""


def columns(runs: Sequence[Run]) -> dict[str, str]:
    """The columns of a table of runs: the paper's, and the OSCR of every other score that a run was measured by."""
    scores = dict.fromkeys(run.config.score for run in runs if run.config.score not in ("cls", "bcls"))
    return {**METRICS, **{f"OSCR {score}": f"oscr/{score}" for score in scores}}


def run_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """A row per run and target, metrics in percent; with several targets, the average of every method below."""
    shown = columns(runs)
    found = [(target, run.config.method, metrics) for run in runs for target, metrics in run.record["targets"].items()]
    rows = [_row(target, method, [metrics], shown) for target, method, metrics in found]
    if len({target for target, _, _ in found}) > 1:
        methods = dict.fromkeys(method for _, method, _ in found)
        rows += [_row("average", name, [m for _, method, m in found if method == name], shown) for name in methods]
    return rows


def source_row(run: Run) -> list[dict[str, str]]:
    """The row of a run's source domains, where the classes are unknown but the domain is not; none without such."""
    source = run.record.get("source")
    return [] if source is None else [_row("(sources)", run.config.method, [source], columns([run]))]


def _row(target: str, method: str, metrics: Sequence[Mapping[str, Any]], shown: Mapping[str, str]) -> dict[str, str]:
    def mean(key: str) -> str:
        values = [found[key] for found in metrics if key in found]
        return f"{100 * sum(values) / len(values):.1f}" if len(values) == len(metrics) else "–"

    return {"target": target, "method": method, **{title: mean(key) for title, key in shown.items()}}


def print_run(run: Run) -> None:
    """Print a row per target of a run, and one of its source domains."""
    print_rows([*run_rows([run]), *source_row(run)], numeric=tuple(columns([run])))


def print_runs(runs: Sequence[Run]) -> None:
    """Print a row per run and target."""
    print_rows(run_rows(runs), numeric=tuple(columns(runs)))


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool = False, numeric: Sequence[str] = ()) -> None:
    """Print rows that share their keys as a table, or as JSON. `numeric` columns are aligned to the right."""
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in rows[0]:
        table.add_column(title, justify="right" if title in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row.values()))  # which may hold brackets, as markup does
    # Where nobody watches there is no width to fit into, and a wrapped line is harder to read by a program.
    console = Console() if sys.stdout.isatty() else Console(width=sys.maxsize)
    console.print(table)
