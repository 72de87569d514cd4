"""The report of a folder of runs: their table, to be sorted, filtered, and asked for the runs behind a number."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from medic.errors import MedicError, counted
from medic.metrics import DEFAULT, METRICS, Metric
from medic.report.formats import Against, entry, written
from medic.report.pages import write_page
from medic.tables.cells import Cell, Pick
from medic.tables.comparison import compare
from medic.tables.results import Collection
from medic.tables.table import AVERAGE, Row, Table, tabulate

FURTHER = tuple(METRICS[key] for key in ("acc_k", "acc_u", "auroc", "oscr_c", "oscr_b"))
"""Metrics beside the usual ones."""
COMPARED = 40
"""The most rows that are compared with each other."""


def write_table_report(collection: Collection, folder: Path, path: Path | None = None, paper: str | None = None) -> Path:
    """Write the report of the runs in a folder, by default into it, beside a table of the paper on request."""
    path = path or folder / "report.html"
    metrics: tuple[Metric, ...] = (*DEFAULT, *FURTHER)
    against: Against | None = None
    if paper is not None:
        from medic.report.against import beside_paper, paper_metrics

        metrics = paper_metrics(paper)
    table = tabulate(collection.results, metrics=metrics, missing=collection.missing)
    if paper is not None:
        table, against = beside_paper(table, paper)
    picks = list(dict.fromkeys(pick for row in table.rows for cell in row.cells.values() for pick in cell.picks))
    numbers = {pick: number for number, pick in enumerate(picks)}
    columns = [*table.columns, *([AVERAGE] if len(table.columns) > 1 else [])]
    methods = [row.method for row in table.rows]
    data = {
        "columns": columns,
        "metrics": [{"key": one.key, "title": one.title, "meaning": one.meaning} for one in table.metrics],
        "rows": [
            {
                "label": row.label,
                "method": row.method,
                "cells": {
                    metric.key: {column: _cell(table, row, column, metric, against, numbers) for column in columns}
                    for metric in table.metrics
                },
            }
            for row in table.rows
        ],
        "runs": [_run(pick, table.metrics, path.parent) for pick in picks],
        "comparisons": _comparisons(table),
        "base": methods.index("erm") if "erm" in methods else 0,
        "other": methods.index("medic++") if "medic++" in methods else len(methods) - 1,
    }
    summary = f"{counted(len(collection.results), 'finished run')} of {counted(len(set(methods)), 'method')}."
    return write_page(
        path,
        "table",
        str(folder),
        data,
        summary=summary,
        notes=[*table.notes, *collection.notes()],
        paper=paper,
        metrics=[metric for metric in table.metrics if metric.meaning],
    )


def _cell(
    table: Table, row: Row, column: str, metric: Metric, against: Against | None, numbers: dict[Pick, int]
) -> dict[str, Any]:
    """Return the mean of a cell, its error, the paper's value, and its runs by number."""
    read = row.reads(metric)
    cell = row.cells.get(column, Cell())
    average = column == AVERAGE
    mean = row.average(read, table.columns) if average else cell.mean(read)
    picks = [pick for one in row.cells.values() for pick in one.picks] if average else list(cell.picks)
    reference = None if against is None else against(metric, row, column)
    return {
        "mean": mean,
        "error": None if average else cell.error(read),
        "paper": None if reference is None else _reference(mean, reference),
        "runs": [numbers[pick] for pick in picks],
    }


def _reference(mean: float | None, reference: Any) -> str:
    """Return the paper's value with the difference to it, or the conditions that differ."""
    if reference.obstacles or mean is None:
        return ", ".join([f"{reference.value:.1f}", *reference.obstacles])
    return f"{reference.value:.1f}, {mean - reference.value:+.1f}"


def _run(pick: Pick, metrics: Sequence[Metric], folder: Path) -> dict[str, Any]:
    """Return a run with its values, and the address of its own report if it has one."""
    result, record = pick.result, pick.result.records[pick.record]
    report = result.path / "report.html"
    return {
        "name": result.path.name,
        "path": str(result.path),
        "report": quote(os.path.relpath(report, folder)) if report.exists() else None,
        "seed": result.trial[0],
        "iteration": "averaged" if record.get("averaged") else str(record["iteration"]),
        "values": [pick.value(metric) for metric in metrics],
    }


def _comparisons(table: Table) -> dict[str, list[list[Any]]]:
    """Return the paired comparison of every two rows: title, difference, interval, p-value and number of pairs."""
    found = {}
    rows = list(enumerate(table.rows[:COMPARED]))
    for (first, base), (second, other) in itertools.combinations(rows, 2):
        try:
            several = [compare(base, other, metric, table.columns) for metric in table.metrics]
        except MedicError:  # they share fewer than two runs
            continue
        found[f"{first},{second}"] = [[c.metric, c.difference, c.low, c.high, c.p, c.pairs] for c in several]
    return found
