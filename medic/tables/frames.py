"""Runs as a pandas frame."""

from pathlib import Path
from typing import Any

from medic.errors import lacking
from medic.runs import selection
from medic.runs.trackers import scalars
from medic.tables.results import Result, collect

ENVIRONMENT_COLUMNS = {"commit": "commit", "image_list": "images", "weights_hash": "weights"}
"""Columns of what a run depends on besides its settings, and their names in its environment."""


def load_runs(*folders: str | Path, every: bool = False) -> Any:
    """A pandas frame of all finished runs below some folders.

    A row is a run, with the evaluation that source validation selects; with `every`, a row is an evaluation, and
    `selected` marks that one. Settings are columns by their names, measurements by their paths: `target/acc`. What is
    both, `lr`, is the setting; `lr/now` is the rate that the schedule had come to.
    """
    try:
        import pandas as pd
    except ImportError:
        raise lacking("load_runs makes a frame of the package pandas", "frames") from None
    results = collect([Path(folder) for folder in folders]).results
    return pd.DataFrame([row for result in results for row in _rows(result, every)])


def _rows(result: Result, every: bool) -> list[dict[str, Any]]:
    shown = [selection.without_target(record, result.environments) for record in result.records]
    chosen = selection.select(shown)
    about = {name: ", ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
             for name, value in result.settings.items()}  # fmt: skip
    return [
        {
            "run": result.path.name,
            "path": str(result.path),
            **about,
            **{column: result.environment.get(name) for column, name in ENVIRONMENT_COLUMNS.items()},
            **{f"{name}/now" if name in about else name: value for name, value in scalars(record)},
            "selected": position == chosen,
        }
        for position, record in enumerate(result.records)
        if every or position == chosen
    ]
