"""Experiment trackers, which receive a run's metrics during training."""

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
    """Interface of a tracker, which receives every evaluation of a run."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation."""

    def close(self) -> None:
        """End the run."""


class TensorBoard:
    """TensorBoard event files in the run directory, for `tensorboard --logdir`."""

    def __init__(self, path: Path, run: str, config: Config, recorded: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Drop events from evaluations that the resumed run repeats.
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=recorded + 1)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write every number."""
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record["iteration"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A Weights & Biases run. Project, mode and API key come from the `WANDB_*` environment variables."""

    def __init__(self, path: Path, run: str, config: Config, recorded: int) -> None:
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
    """An MLflow run. The server address comes from the `MLFLOW_*` environment variables."""

    def __init__(self, path: Path, run: str, config: Config, recorded: int) -> None:
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
        """Log all numbers in one request; `@` and `=` are replaced because MLflow does not allow them in names."""
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
"""Trackers, by the name of the package that each of them requires."""


def tracker_names(track: str) -> list[str]:
    """Return the names of the requested trackers; `auto` means TensorBoard if it is installed."""
    if track == "auto":
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in (names := check_trackers(track)):
        if importlib.util.find_spec(name) is None:
            raise lacking(f"tracker {name!r} requires {name}", name)
    return names


def start_trackers(track: str, path: Path, run: str, config: Config, iteration: int) -> dict[str, Tracker]:
    """Start the requested trackers for the run with hash `run`, which starts or resumes at `iteration`."""
    started: dict[str, Tracker] = {}
    for name in tracker_names(track):
        try:
            started[name] = TRACKERS[name](path, run, config, iteration)
        except Exception as error:  # third-party packages may raise anything
            close_all(started)
            raise MedicError(
                f"cannot start tracker {name!r}: {first_line(error)}; fix the problem, or remove it from --track"
            ) from error
    return started


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a record except settings, with its path, such as `target/acc`."""
    for name, value in record.items():
        if name in ("args", "hparams", "asked"):  # `asked` occurs in records of version 0.3
            continue
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def title(config: Config) -> str:
    """Return a run's title for trackers."""
    target = ", ".join(config.data.target) or "none"
    return f"{config.data.dataset} {config.run.method} → {target}, seed {config.run.seed}"


def record_all(trackers: Mapping[str, Tracker], record: Mapping[str, Any]) -> dict[str, Tracker]:
    """Send an evaluation to all trackers and return those that accepted it. A lost connection does not end the run."""
    accepted = {}
    for name, tracker in trackers.items():
        try:
            tracker.record(record)
            accepted[name] = tracker
        except Exception as error:  # third-party packages may raise anything
            reason = first_line(error)
            logger.warning(
                "tracker %r failed and was disabled: %s; results.jsonl still records every metric", name, reason
            )
    return accepted


def close_all(trackers: Mapping[str, Tracker]) -> None:
    """Close all trackers."""
    for name, tracker in trackers.items():
        try:
            tracker.close()
        except Exception as error:  # third-party packages may raise anything
            logger.warning("cannot close tracker %r: %s", name, first_line(error))
