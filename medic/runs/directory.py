"""The directory of a run that is being executed: what is written, and when."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medic.config.files import read_settings, to_json
from medic.config.resolve import Plan
from medic.config.settings import identity
from medic.data import Dataset
from medic.errors import BusyError, MedicError
from medic.runs.environment import commit, environment, read_environment, read_plugins
from medic.runs.layout import (
    CHECKPOINT,
    CONFIG,
    DONE,
    ENVIRONMENT,
    ITERATION,
    LOCK,
    MAX_LISTED,
    PREDICTIONS,
    RECORDS,
    USER_SETTINGS,
    config_file,
)
from medic.runs.seal import make_seal
from medic.training import save_checkpoint
from medic.utils.files import atomic_write, file_hash, is_locked, locked, write_text, writing
from medic.utils.plugins import Plugin

RESULTS_VERSION = 5
"""Raised whenever the same settings give other metrics, so that earlier runs are not reused."""


def run_hash(plan: Plan, images: str) -> str:
    """Return what identifies a run with a fingerprint of its images, and names its directory unless `--name` does.

    It is a hash of everything that changes the result, not of where files are.
    """
    used = {
        "format": RESULTS_VERSION,
        "images": images,
        "weights": None if plan.weights is None else file_hash(plan.weights),
        "settings": plan.config.identity,
        **({"plugins": sorted(plugin.sha256 for plugin in plan.plugins)} if plan.plugins else {}),
    }
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / DONE).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and lock it, so that no two processes execute the same run at once."""
        busy = BusyError(f"run {self.path} is being written by another process")
        with ExitStack() as held:
            with writing("output", self.path.parent):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self.path / LOCK, busy))
            yield

    @property
    def started(self) -> bool:
        """Whether the run has a checkpoint to resume."""
        return self.checkpoint.exists()

    @property
    def busy(self) -> bool:
        """Whether a process is executing the run, as far as this user may see."""
        return is_locked(self.path / LOCK)

    def write_start(self, plan: Plan) -> None:
        """Write the settings, as the user wrote them and complete."""
        write_text(self.path / USER_SETTINGS, to_json(plan.user_settings))
        write_text(self.path / CONFIG, to_json(plan.config.settings))

    def check_named(self, plan: Plan, run: str) -> None:
        """Refuse a directory named by `--name` that holds anything but the run with the hash `run`."""
        if plan.config.execution.name is None or not any(entry.name[0] != "." for entry in self._entries()):
            return
        noted = read_environment(self.path)
        if noted.get("run") != run:
            what = "other files"
            if "run" in noted:
                what = f"a run with other {_difference(plan, self.path / config_file(self.path), read_plugins(noted))}"
            longer = f", continue it with --extend {self.path}" if "(iterations " in what else ""
            raise MedicError(f"{self.path} holds {what}: choose another --name{longer}, or delete {self.path}")

    def _entries(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def write_environment(self, plan: Plan, dataset: Dataset, run: str) -> None:
        """Write what the result depends on besides the settings, and the run's hash."""
        write_text(self.path / ENVIRONMENT, _json({"run": run, **environment(dataset, plan)}))

    def write_resumed(self, iteration: int) -> None:
        """Record the iteration from which on the run has another commit, if it has."""
        noted, now = read_environment(self.path), commit()
        resumed = noted.get("resumed", [])
        if not noted or not isinstance(resumed, list):  # a damaged file: a table then reports an unknown commit
            return
        if [noted, *resumed][-1].get("commit") != now:
            changed = {**noted, "resumed": [*resumed, {"iteration": iteration, "commit": now}]}
            write_text(self.path / ENVIRONMENT, _json(changed))

    def write_checkpoint(self, iteration: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint, and note its iteration beside it."""
        save_checkpoint(self.checkpoint, state)
        write_text(self.path / ITERATION, f"{iteration}\n")

    def write_records(self, records: Sequence[dict[str, Any]]) -> None:
        """Write all evaluations so far, one line each."""
        write_text(self.path / RECORDS, "".join(json.dumps(record) + "\n" for record in records))

    def write_predictions(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write one row per validation and target image."""
        with atomic_write(self.path / PREDICTIONS) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def write_done(self, seconds: float) -> None:
        """Mark the run as finished, with its duration in seconds and the checksums of its files."""
        write_text(self.path / DONE, make_seal(self.path, seconds))


def named_runs(folder: Path) -> dict[str, Path]:
    """Return the finished runs of a folder whose directories `--name` has named, by their hash."""
    paths = [path.parent for path in folder.glob(f"*/{DONE}")]
    return {str(run): path for path in paths if (run := read_environment(path).get("run", path.name)) != path.name}


def _difference(plan: Plan, config: Path, plugins: Sequence[Plugin]) -> str:
    """Name what differs between a plan and a run's configuration or plug-ins; otherwise, images or weights do."""
    try:
        theirs = identity(read_settings(config))
    except MedicError:
        return "settings"
    ours = plan.config.identity
    if {plugin.sha256 for plugin in plan.plugins} != {plugin.sha256 for plugin in plugins}:
        return f"contents of {(*plan.plugins, *plugins)[0].name}"
    names = sorted({**ours, **theirs}, key=lambda name: name != "iterations")
    changed = [
        f"{name} {_changed(theirs.get(name), ours.get(name))}" for name in names if ours.get(name) != theirs.get(name)
    ]
    return f"settings ({', '.join(changed[:MAX_LISTED])})" if changed else "images or weights"


def _changed(theirs: Any, ours: Any) -> str:
    """Return a value of another run; of a mapping only what differs."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return str(theirs)
    return ", ".join(f"{name}={value}" for name, value in theirs.items() if ours.get(name) != value) or str(theirs)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
