"""The call from Python: `medic.train(dataset="digits", target="street", method="medic++")`."""

from typing import Any

from medic.runs.run import Run
from medic.runs.train import train as train_run


def train(*, quiet: bool = False, **settings: Any) -> Run:
    """Train a run and return it: its metrics, predictions and model. The settings are those of `medic train --help`."""
    return train_run(settings, quiet=quiet)
