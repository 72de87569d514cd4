"""`medic runs`."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from medic.cli.options import add_format_option
from medic.errors import counted
from medic.metrics import DEFAULT
from medic.report.terminal import print_rows
from medic.results.listing import Listed, list_runs

logger = logging.getLogger(__name__)

REASONS = 3
"""Number of failed and of damaged runs whose reason is logged."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic runs`."""
    parser.add_argument(
        "folders", nargs="*", default=["runs"], metavar="DIR", help="folders with runs, or runs (default: runs)"
    )
    add_format_option(parser, ("text", "json"))


def run(arguments: Namespace) -> int:
    """List runs, the one that was written last at the end."""
    as_json = arguments.format == "json"
    runs = list_runs(map(Path, arguments.folders))
    if as_json:
        print_rows([_entry(one) for one in runs], as_json)
        return 0
    if not runs:
        logger.info("no runs in %s", ", ".join(arguments.folders))
        return 0
    print_rows([_row(one, len(arguments.folders) > 1) for one in runs], numeric=[metric.title for metric in DEFAULT])
    _log_reasons(runs)
    return 0


def _row(run: Listed, several: bool) -> dict[str, str]:
    settings, method = run.settings, run.settings.get("method", "–")
    shown = {
        metric.title: f"{metric.scale * run.metrics[metric.key]:.1f}" if metric.key in run.metrics else "–"
        for metric in DEFAULT
    }
    return {
        "run": str(run.path) if several else run.path.name,
        "method": f"{method} (soup of {len(settings['soup'])})" if "soup" in settings else method,
        "target": ", ".join(map(str, settings.get("target", []))) or "–",
        "seed": str(settings.get("seed", "–")),
        "state": _state(run),
        **shown,
        "written": f"{datetime.fromtimestamp(run.written):%Y-%m-%d %H:%M}" if run.written else "–",
    }


def _state(run: Listed) -> str:
    """Return the state for people, with the iteration of a run that is not finished."""
    if run.state not in ("running", "unfinished") or run.iteration is None:
        return run.state
    return f"{run.state} at {run.iteration} of {run.settings.get('iterations', '?')}"


def _entry(run: Listed) -> dict[str, Any]:
    """Return a run for programs: metrics are fractions, as in results.jsonl."""
    return {
        "run": run.path.name,
        "path": str(run.path),
        "state": run.state,
        "method": run.settings.get("method"),
        "soup": len(run.settings.get("soup", ())) or None,
        "target": run.settings.get("target", []),
        "seed": run.settings.get("seed"),
        "iteration": run.iteration,
        "iterations": run.settings.get("iterations"),
        **{metric.key: run.metrics.get(metric.key) for metric in DEFAULT},
        "written": datetime.fromtimestamp(run.written).astimezone().isoformat(timespec="seconds")
        if run.written
        else None,
        "reason": run.reason or None,
    }


def _log_reasons(runs: Sequence[Listed]) -> None:
    """Log why runs failed or are damaged, the last ones of each."""
    for state, is_so, are_so in (("failed", "failed", "failed"), ("damaged", "is damaged", "are damaged")):
        found = [run for run in runs if run.state == state]
        for run in found[-REASONS:]:
            logger.warning("%s %s: %s", run.path, is_so, run.reason)
        if more := len(found[:-REASONS]):
            logger.warning("%s %s", counted(more, "more run"), is_so if more == 1 else are_so)
