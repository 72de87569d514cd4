"""The `medic runs` command."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from medic.cli.options import add_format_option
from medic.config.config import Config
from medic.errors import MedicError, counted
from medic.metrics import DEFAULT
from medic.reports.terminal import print_rows
from medic.results.compare import drawn_split
from medic.results.runs import list_runs
from medic.results.tabulate import value_text
from medic.runs.run import Run

logger = logging.getLogger(__name__)

REASONS = 3
"""Maximum number of failed runs, and separately of damaged runs, for which the reason is logged."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic runs`."""
    parser.add_argument(
        "folders",
        nargs="*",
        default=["runs"],
        metavar="DIR",
        help="folders of runs, or run directories (default: runs)",
    )
    add_format_option(parser, ("text", "json"))


def run(arguments: Namespace) -> int:
    """List runs, most recently written last."""
    as_json = arguments.format == "json"
    runs = list_runs(map(Path, arguments.folders))
    if as_json:
        print_rows([_entry(run) for run in runs], as_json)
        return 0
    if not runs:
        logger.info("no runs in %s", ", ".join(arguments.folders))
        return 0
    rows = [_row(run, len(arguments.folders) > 1) for run in runs]
    if not any(map(_is_drawn, runs)):  # the unknown classes do not depend on the seed
        for row in rows:
            del row["unknown"]
    print_rows(rows, numeric=[metric.title for metric in DEFAULT])
    _log_reasons(runs)
    return 0


def _row(run: Run, several: bool) -> dict[str, str]:
    config, metrics = _config(run), _metrics(run)
    measured = {
        metric.title: f"{metric.scale * metrics[metric.key]:.1f}" if metric.key in metrics else "–"
        for metric in DEFAULT
    }
    method = "–" if config is None else run.method
    return {
        "run": str(run.path) if several else run.path.name,
        "method": f"{method} (soup of {len(config.soup)})" if config is not None and config.soup else method,
        "target": "–" if config is None else ", ".join(run.targets),
        "seed": "–" if config is None else str(config.run.seed),
        "unknown": "–" if config is None else value_text(config.data.unknown),
        "state": _state(run),
        **measured,
        "written": f"{datetime.fromtimestamp(run.written):%Y-%m-%d %H:%M}" if run.written else "–",
    }


def _config(run: Run) -> Config | None:
    """Return the configuration of a run, or None if it is missing or unreadable."""
    try:
        return run.config
    except MedicError:
        return None


def _is_drawn(run: Run) -> bool:
    """Return whether the classes of a run depend on the seed; False if its settings are missing or unreadable."""
    try:
        return drawn_split(run) is not None
    except MedicError:
        return False


def _metrics(run: Run) -> Mapping[str, float]:
    """Return the target metrics of a finished run, as fractions."""
    if run.state not in ("finished", "learned nothing"):
        return {}
    return {name: value for name, value in run.metrics.items() if type(value) in (int, float)}


def _state(run: Run) -> str:
    """Format the state of a run, with the current iteration if it is not finished."""
    if run.state not in ("running", "unfinished") or run.iteration is None:
        return run.state
    config = _config(run)
    return f"{run.state} at {run.iteration} of {'?' if config is None else config.optim.iterations}"


def _entry(run: Run) -> dict[str, Any]:
    """Return a JSON entry for a run. Metrics are fractions, as in results.jsonl."""
    config, metrics = _config(run), _metrics(run)
    iteration = run.record["iteration"] if metrics else run.iteration
    return {
        "run": run.path.name,
        "path": str(run.path),
        "state": run.state,
        "method": None if config is None else run.method,
        "soup": None if config is None else len(config.soup) or None,
        "target": [] if config is None else list(run.targets),
        "seed": None if config is None else config.run.seed,
        "unknown": [] if config is None else config.data.unknown,
        "iteration": None if run.state == "damaged" else iteration,
        "iterations": None if config is None else config.optim.iterations,
        **{metric.key: metrics.get(metric.key) for metric in DEFAULT},
        "written": datetime.fromtimestamp(run.written).astimezone().isoformat(timespec="seconds")
        if run.written
        else None,
        "reason": run.damage or run.failure or None,
    }


def _log_reasons(runs: Sequence[Run]) -> None:
    """Log the reasons for the most recent failed and damaged runs."""
    for state, is_so, are_so in (("failed", "failed", "failed"), ("damaged", "is damaged", "are damaged")):
        affected = [run for run in runs if run.state == state]
        for run in affected[-REASONS:]:
            logger.warning("%s %s: %s", run.path, is_so, run.damage or run.failure)
        if more := len(affected[:-REASONS]):
            logger.warning("%s %s", counted(more, "more run"), is_so if more == 1 else are_so)
