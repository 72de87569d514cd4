"""The one call from Python: `medic.train(dataset="digits", target="street", method="medic++")`."""

import dataclasses
from pathlib import Path
from typing import Any

from medic.errors import check_choice
from medic.runs.config import RunConfig
from medic.runs.directory import Run
from medic.runs.train import train as train_run


def train(*, quiet: bool = False, **settings: Any) -> Run:
    """Do a run and return it: its metrics, predictions and model. The settings are those of `medic train --help`."""
    names = [field.name for field in dataclasses.fields(RunConfig)]
    for name in settings:
        check_choice("setting", name, names)
    plain: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return train_run(RunConfig(**plain), quiet=quiet)
