"""Experiment trackers: programs that receive a run's metrics while it trains."""

import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from medic.config.config import Config
from medic.config.execution import check_trackers
from medic.errors import MedicError, first_line, lacking
from medic.utils.command import secrets_hidden

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receives every evaluation of a run."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation."""

    def close(self) -> None:
        """End the run."""


class TensorBoard:
    """Event files in the run's directory, for `tensorboard --logdir`."""

    def __init__(self, path: Path, run: str, config: Config, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Drop events of iterations that a killed run repeats.
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=iteration + 1 if iteration else None)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write every number."""
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record["iteration"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, which takes project, mode and key from its own environment variables."""

    def __init__(self, path: Path, run: str, config: Config, iteration: int) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "medic")
        with secrets_hidden():  # wandb records the command line
            self._run = wandb.init(
                project=project,
                id=run,
                name=title(config),
                dir=str(path),
                resume="allow",
                config=config.identity,
            )

    def record(self, record: Mapping[str, Any]) -> None:
        """Log every number."""
        self._run.log(dict(scalars(record)), step=record["iteration"])

    def close(self) -> None:
        """Send the remaining data."""
        self._run.finish()


class MLflow:
    """A run of MLflow, which takes the address of its server from its own environment variables."""

    def __init__(self, path: Path, run: str, config: Config, iteration: int) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "medic")
        existing = self._client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else self._client.create_experiment(experiment)
        known = self._client.search_runs([number], f"tags.medic_run = '{run}'")
        if known:
            self._run = known[0].info.run_id
        else:
            tags = {"medic_run": run, "mlflow.runName": title(config)}
            self._run = self._client.create_run(number, tags=tags).info.run_id
            values = {name: str(value)[:500] for name, value in config.identity.items() if value is not None}
            self._client.log_batch(self._run, params=[mlflow.entities.Param(*item) for item in values.items()])

    def record(self, record: Mapping[str, Any]) -> None:
        """Log every number in one message; MLflow does not allow `@` and `=` in names."""
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), record["iteration"]
        named = ((name.replace("@", "_at_").replace("=", "_"), value) for name, value in scalars(record))
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in named])

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run)


TRACKERS: Mapping[str, Callable[[Path, str, Config, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""Trackers by the package that each requires."""


def tracker_names(track: str) -> list[str]:
    """Return the requested trackers; `auto` is TensorBoard if it is installed."""
    if track == "auto":
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in (names := check_trackers(track)):
        if importlib.util.find_spec(name) is None:
            raise lacking(f"tracker {name!r} needs the package {name}", name)
    return names


def start_trackers(track: str, path: Path, run: str, config: Config, iteration: int) -> dict[str, Tracker]:
    """Start the requested trackers of the run with the hash `run`, which starts or resumes at an iteration."""
    started: dict[str, Tracker] = {}
    for name in tracker_names(track):
        try:
            started[name] = TRACKERS[name](path, run, config, iteration)
        except Exception as error:  # their packages raise anything
            close_all(started)
            raise MedicError(
                f"tracker {name!r} cannot be started: {first_line(error)}; leave it out of --track"
            ) from error
    return started


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a record with its path, `target/acc`, except settings."""
    for name, value in record.items():
        if name in ("args", "hparams", "asked"):  # version 0.3 recorded what was asked
            continue
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def title(config: Config) -> str:
    """Return the title of a run."""
    target = ", ".join(config.data.target) or "none"
    return f"{config.data.dataset} {config.run.method} → {target}, seed {config.run.seed}"


def record_all(trackers: Mapping[str, Tracker], record: Mapping[str, Any]) -> dict[str, Tracker]:
    """Send an evaluation to all trackers; return those that accepted it. A lost server does not end a run."""
    accepted = {}
    for name, tracker in trackers.items():
        try:
            tracker.record(record)
            accepted[name] = tracker
        except Exception as error:  # their packages raise anything
            reason = first_line(error)
            logger.warning("tracker %r failed and is dropped: %s; results.jsonl has every number", name, reason)
    return accepted


def close_all(trackers: Mapping[str, Tracker]) -> None:
    """Close all trackers."""
    for name, tracker in trackers.items():
        try:
            tracker.close()
        except Exception as error:  # their packages raise anything
            logger.warning("tracker %r could not be closed: %s", name, first_line(error))
