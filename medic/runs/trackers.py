"""Trackers: other programs that a run's numbers are sent to while they are made."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from medic.errors import MedicError, check_choice, first_line, lacking
from medic.runs.command import secrets_hidden
from medic.runs.config import RunConfig


class Tracker(Protocol):
    """Is told of every evaluation of a run."""

    def record(self, record: Mapping[str, Any]) -> None:
        """An evaluation was made."""

    def close(self) -> None:
        """The run has ended, one way or another."""


class TensorBoard:
    """Event files in the run's directory, for `tensorboard --logdir`."""

    def __init__(self, path: Path, config: RunConfig, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was written of iterations that a killed run has to do again is dropped.
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

    def __init__(self, path: Path, config: RunConfig, iteration: int) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "medic")
        with secrets_hidden():  # it keeps the command that it finds itself in
            self._run = wandb.init(
                project=project,
                id=path.name,
                name=title(config),
                dir=str(path),
                resume="allow",
                config=config.identity(),
            )

    def record(self, record: Mapping[str, Any]) -> None:
        """Log every number."""
        self._run.log(dict(scalars(record)), step=record["iteration"])

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class MLflow:
    """A run of MLflow, which takes the address of its server from its own environment variables."""

    def __init__(self, path: Path, config: RunConfig, iteration: int) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "medic")
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        known = self._client.search_runs([number], f"tags.medic_run = '{path.name}'")
        if known:
            self._run = known[0].info.run_id
        else:
            tags = {"medic_run": path.name, "mlflow.runName": title(config)}
            self._run = self._client.create_run(number, tags=tags).info.run_id
            settings = {name: str(value)[:500] for name, value in config.identity().items() if value is not None}
            self._client.log_batch(self._run, params=[mlflow.entities.Param(*item) for item in settings.items()])

    def record(self, record: Mapping[str, Any]) -> None:
        """Log every number, in one message; `@` and `=` are not allowed in names there."""
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), record["iteration"]
        named = ((name.replace("@", "_at_").replace("=", "_"), value) for name, value in scalars(record))
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in named])

    def close(self) -> None:
        """Say that it has ended."""
        self._client.set_terminated(self._run)


TRACKERS: Mapping[str, tuple[str, Callable[[Path, RunConfig, int], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", WeightsAndBiases),
    "mlflow": ("mlflow", MLflow),
}
"""By name: the package that each needs, and how it is started."""


def tracker_names(asked: str) -> list[str]:
    """The trackers that are asked for: `auto` is TensorBoard where it is installed."""
    if asked == "auto":
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in (names := check_trackers(asked)):
        package = TRACKERS[name][0]
        if importlib.util.find_spec(package) is None:
            raise lacking(f"tracker {name!r} needs the package {package}", name)
    return names


def check_trackers(asked: str) -> list[str]:
    """The trackers that are named, whether or not they are installed here."""
    if asked in ("auto", "none"):
        return []
    return [check_choice("tracker", name, ["auto", "none", *TRACKERS]) for name in asked.split(",")]


def start_trackers(asked: str, path: Path, config: RunConfig, iteration: int) -> dict[str, Tracker]:
    """Start what was asked for, for a run that begins or goes on at an iteration."""
    started: dict[str, Tracker] = {}
    for name in tracker_names(asked):
        try:
            started[name] = TRACKERS[name][1](path, config, iteration)
        except Exception as error:  # whatever their packages raise: an address, a key, a version
            for tracker in started.values():
                tracker.close()
            raise MedicError(
                f"tracker {name!r} cannot be started: {first_line(error)}; leave it out of --track"
            ) from error
    return started


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a record with its path: `target/acc`. Settings are not among them."""
    for name, value in record.items():
        if name in ("args", "hparams"):
            continue
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def title(config: RunConfig) -> str:
    """What a run is called among others."""
    return f"{config.dataset} {config.method} → {config.target_names}, seed {config.seed}"


def tell(trackers: Mapping[str, Tracker], record: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Tracker]:
    """Tell trackers of an evaluation; gives those that took it. A server that went away does not end a run."""
    took = {}
    for name, tracker in trackers.items():
        try:
            tracker.record(record)
            took[name] = tracker
        except Exception as error:  # whatever their packages raise
            say(f"tracker {name!r} is told no more: {first_line(error)}; results.jsonl has every number")
    return took


def close_all(trackers: Mapping[str, Tracker], say: Callable[[str], None]) -> None:
    """End them."""
    for name, tracker in trackers.items():
        try:
            tracker.close()
        except Exception as error:  # whatever their packages raise
            say(f"tracker {name!r} was not told that the run has ended: {first_line(error)}")
