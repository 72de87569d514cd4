"""The report on a folder of runs: charts, and a sortable, filterable table with the runs behind each number."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from medic.errors import counted
from medic.metrics import DEFAULT, METRICS, Metric
from medic.reports.pages import write_page
from medic.results.cells import Cell, Pick
from medic.results.runs import Runs
from medic.results.table import AVERAGE, Against, Row, Table, written
from medic.results.tabulate import tabulate
from medic.results.wording import learned_nothing

FURTHER = tuple(METRICS[key] for key in ("acc_k", "acc_u", "auroc", "oscr_c", "oscr_b"))
"""Additional metrics."""
HEADLINE = "oscr"
"""Metric shown first. It needs no threshold and covers both known and unknown images."""


def write_table_report(collection: Runs, title: str, path: Path, paper: str | None = None, note: str = "") -> Path:
    """Write the report on several runs, optionally next to one of the paper's tables.

    If results use averaged weights, the page contains the table twice: with our selection rule and with the paper's.
    """
    metrics: tuple[Metric, ...] = (*DEFAULT, *FURTHER)
    if paper is not None:
        from medic.reports.against import paper_metrics  # it imports torch

        metrics = paper_metrics(paper)
    tables = [_tabulated(collection, "validation", metrics, paper)]
    if any(pick.evaluation.get("averaged") for row in tables[0][0].rows for pick in row.picks):
        tables.append(_tabulated(collection, "evaluation", metrics, paper))
    methods = [row.method for row in tables[0][0].rows]
    datasets = sorted({run.config.data.dataset for run in collection.finished})
    visible = tables[0][0].metrics
    data = {
        "metrics": [
            {
                "key": one.key,
                "title": one.title,
                "meaning": one.meaning,
                "lower": not one.higher_is_better,
                "percent": one.scale == METRICS["acc"].scale,
            }
            for one in visible
        ],
        "tables": [_content(table, visible, against, path.parent) for table, against in tables],
        "first": next((i for i, metric in enumerate(visible) if metric.key == HEADLINE), 0),
        "base": methods.index("erm") if "erm" in methods else 0,
        "other": methods.index("medic++") if "medic++" in methods else len(methods) - 1,
    }
    return write_page(
        path,
        "table",
        title,
        data,
        summary=f"Dataset {', '.join(datasets)}: {counted(len(collection.finished), 'finished run')} of "
        f"{counted(len(set(methods)), 'method')}. {note}",
        failures=learned_nothing(collection.finished),
        notes=list(collection.notes()),
        paper=paper,
        metrics=[metric for metric in visible if metric.meaning],
        averaged=len(tables) > 1,
    )


Tabulated = tuple[Table, Against | None]


def _tabulated(collection: Runs, rule: str, metrics: Sequence[Metric], paper: str | None) -> Tabulated:
    """Return the table of the runs under a selection rule and, if requested, the paper's values."""
    table = tabulate(collection.finished, rule, metrics, missing=collection.missing)
    if paper is None:
        return table, None
    from medic.reports.against import beside_paper

    return beside_paper(table, paper)


def _content(table: Table, metrics: Sequence[Metric], against: Against | None, folder: Path) -> dict[str, Any]:
    """Return a table's rows, runs and notes for the script."""
    columns = table.columns_with_average
    runs: list[dict[str, Any]] = []
    rows = []
    for row in table.rows:
        numbers = {pick: len(runs) + number for number, pick in enumerate(row.picks)}
        runs += [_run(pick, [row.reads(metric) for metric in metrics], folder) for pick in numbers]
        cells = {column: row.cells.get(column, Cell()).picks for column in table.columns} | {AVERAGE: row.picks}
        rows.append(
            {
                "label": row.label,
                "method": row.method,
                "cells": {
                    metric.key: {column: _cell(table, row, column, metric, against) for column in columns}
                    for metric in metrics
                },
                "runs": {column: [numbers[pick] for pick in cells[column]] for column in columns},
            }
        )
    return {
        "columns": columns,
        "compared": table.columns,
        "kind": table.kind,
        "rows": rows,
        "runs": runs,
        "notes": table.notes,
    }


def _cell(table: Table, row: Row, column: str, metric: Metric, against: Against | None) -> dict[str, Any]:
    """Return a cell's mean, standard error and displayed text."""
    entry = table.entry(row, column, metric, against)
    return {"mean": entry.mean, "error": entry.error, "text": written(entry)}


def _run(pick: Pick, metrics: Sequence[Metric], folder: Path) -> dict[str, Any]:
    """Return a run's values and, if it has a report, the link to it."""
    run, record = pick.run, pick.evaluation
    report = run.path / "report.html"
    return {
        "name": run.path.name,
        "command": f"medic report {shlex.quote(str(run.path))}",
        "report": quote(os.path.relpath(report, folder)) if report.exists() else None,
        "seed": run.trial[0],
        "trial": str(run.trial),
        "iteration": "averaged" if record.get("averaged") else str(record["iteration"]),
        "values": [pick.value(metric) for metric in metrics],
        "acc": pick.value(METRICS["acc"]),
        "classes": len(run.config.data.known),
    }
