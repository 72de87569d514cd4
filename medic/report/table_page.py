"""The report of a folder of runs: their table, to be sorted, filtered, and asked for the runs behind a number."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from medic.errors import MedicError, counted
from medic.metrics import DEFAULT, METRICS, Metric
from medic.report.formats import Against, columns_with_average, entry, written
from medic.report.pages import write_page
from medic.tables.cells import Cell, Pick
from medic.tables.comparison import compare
from medic.tables.results import Collection
from medic.tables.table import AVERAGE, Row, Table, tabulate

FURTHER = tuple(METRICS[key] for key in ("acc_k", "acc_u", "auroc", "oscr_c", "oscr_b"))
"""Metrics beside the usual ones."""
COMPARED = 40
"""The most rows that are compared with each other."""


def write_table_report(
    collection: Collection, title: str, path: Path, paper: str | None = None, note: str = ""
) -> Path:
    """Write the report of some runs, beside a table of the paper on request.

    Where results are averaged weights, the table is there twice: by our rule and by the paper's.
    """
    metrics: tuple[Metric, ...] = (*DEFAULT, *FURTHER)
    if paper is not None:
        from medic.report.against import paper_metrics  # it imports torch

        metrics = paper_metrics(paper)
    tables = [_tabulated(collection, "validation", metrics, paper)]
    if any(pick.result.records[pick.record].get("averaged") for pick in _picks(tables[0][0])):
        tables.append(_tabulated(collection, "evaluation", metrics, paper))
    methods = [row.method for row in tables[0][0].rows]
    shown = tables[0][0].metrics
    data = {
        "metrics": [{"key": one.key, "title": one.title, "meaning": one.meaning} for one in shown],
        "tables": [_content(table, against, path.parent) for table, against in tables],
        "base": methods.index("erm") if "erm" in methods else 0,
        "other": methods.index("medic++") if "medic++" in methods else len(methods) - 1,
    }
    summary = f"{counted(len(collection.results), 'finished run')} of {counted(len(set(methods)), 'method')}. {note}"
    return write_page(
        path,
        "table",
        title,
        data,
        summary=summary,
        notes=[*tables[0][0].notes, *collection.notes()],
        paper=paper,
        metrics=[metric for metric in shown if metric.meaning],
        averaged=len(tables) > 1,
    )


Tabulated = tuple[Table, Against | None]


def _tabulated(collection: Collection, rule: str, metrics: Sequence[Metric], paper: str | None) -> Tabulated:
    """Return the table of the runs by a rule that selects evaluations, and the paper's values for it."""
    table = tabulate(collection.results, rule, metrics, missing=collection.missing)
    if paper is None:
        return table, None
    from medic.report.against import beside_paper

    return beside_paper(table, paper)


def _picks(table: Table) -> list[Pick]:
    return list(dict.fromkeys(pick for row in table.rows for cell in row.cells.values() for pick in cell.picks))


def _content(table: Table, against: Against | None, folder: Path) -> dict[str, Any]:
    """Return the rows and runs of a table for the script."""
    picks = _picks(table)
    numbers = {pick: number for number, pick in enumerate(picks)}
    columns = columns_with_average(table)
    return {
        "columns": columns,
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
        "runs": [_run(pick, table.metrics, folder) for pick in picks],
        "comparisons": _comparisons(table),
    }


def _cell(
    table: Table, row: Row, column: str, metric: Metric, against: Against | None, numbers: dict[Pick, int]
) -> dict[str, Any]:
    """Return the mean of a cell, its error, the whole text of it, and its runs by number."""
    found = entry(table, row, column, metric, against)
    cells = row.cells.values() if column == AVERAGE else [row.cells.get(column, Cell())]
    runs = [numbers[pick] for cell in cells for pick in cell.picks]
    return {"mean": found.mean, "text": written(found), "runs": runs}


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
    found: dict[str, list[list[Any]]] = {}
    rows = list(enumerate(table.rows[:COMPARED]))
    for (first, base), (second, other) in itertools.combinations(rows, 2):
        for metric in table.metrics:
            try:
                c = compare(base, other, metric, table.columns)
            except MedicError:  # they share fewer than two values of it
                continue
            lines = found.setdefault(f"{first},{second}", [])
            lines.append([c.metric, c.difference, c.low, c.high, c.p, c.pairs])
    return found
