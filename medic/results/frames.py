"""Runs and other rows as pandas data frames."""

from collections.abc import Mapping, Sequence
from typing import Any

from medic.errors import lacking
from medic.runs.run import Run
from medic.runs.trackers import scalars

ENVIRONMENT_COLUMNS = {"commit": "commit", "image_list": "images", "weights_hash": "weights"}
"""Columns taken from a run's environment.json, with the corresponding keys."""


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas data frame."""
    try:
        import pandas as pd
    except ImportError:
        raise lacking("a data frame requires pandas", "frames") from None
    return pd.DataFrame(rows)


def make_run_frame(runs: Sequence[Run], every: bool) -> Any:
    """Return a data frame with one row per run or, with `every`, one row per evaluation."""
    return make_frame([row for run in runs for row in _rows(run, every)])


def _rows(run: Run, every: bool) -> list[dict[str, Any]]:
    settings = {
        name: ", ".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value
        for name, value in run.identity.items()
    }
    return [
        {
            "run": run.path.name,
            "path": str(run.path),
            **settings,
            **{column: run.environment.get(name) for column, name in ENVIRONMENT_COLUMNS.items()},
            **{f"{name}/now" if name in settings else name: value for name, value in scalars(record)},
            "selected": position == run.selected,
            "learned": run.learned,
        }
        for position, record in enumerate(run.records)
        if every or position == run.selected
    ]
