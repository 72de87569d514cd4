"""Runs as a pandas frame."""

from pathlib import Path
from typing import Any

from medic.errors import lacking
from medic.results.runs import find_runs
from medic.runs.run import Run
from medic.runs.trackers import scalars

ENVIRONMENT_COLUMNS = {"commit": "commit", "image_list": "images", "weights_hash": "weights"}
"""Columns with entries of a run's environment.json, and the keys of these entries."""


def load_runs(*folders: str | Path, every: bool = False) -> Any:
    """Return a pandas frame of all finished runs in some folders.

    A row is a run, with the evaluation selected by source validation. With `every`, a row is an evaluation, and the
    column `selected` marks the selected ones. The column `learned` is False for runs that learned nothing. Settings are
    columns by their names, measurements by their paths: `target/acc`. `lr` is the setting; `lr/now` is the current
    value of the schedule.
    """
    try:
        import pandas as pd
    except ImportError:
        raise lacking("load_runs needs the package pandas", "frames") from None
    results = find_runs([Path(folder) for folder in folders]).finished
    return pd.DataFrame([row for result in results for row in _rows(result, every)])


def _rows(result: Run, every: bool) -> list[dict[str, Any]]:
    settings = {
        name: ", ".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value
        for name, value in result.identity.items()
    }
    return [
        {
            "run": result.path.name,
            "path": str(result.path),
            **settings,
            **{column: result.environment.get(name) for column, name in ENVIRONMENT_COLUMNS.items()},
            **{f"{name}/now" if name in settings else name: value for name, value in scalars(record)},
            "selected": position == result.selected,
            "learned": result.learned,
        }
        for position, record in enumerate(result.records)
        if every or position == result.selected
    ]
