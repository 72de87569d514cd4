"""The directory of a run in progress: which files are written, and when."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medic.config.files import read_settings, to_json
from medic.config.plan import Plan
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
"""Increased whenever the same settings lead to different metrics, so that earlier runs are not reused."""


def run_hash(plan: Plan, images: str) -> str:
    """Return the hash that identifies a run; `images` is the fingerprint of its images.

    The hash covers everything that affects the result, but not where files are stored. It names the run directory
    unless `--name` is set.
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
        """Create and lock the directory, so that only one process executes the run."""
        busy = BusyError(f"run {self.path} is being written by another process")
        with ExitStack() as held:
            with writing("output", self.path.parent):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self.path / LOCK, busy))
            yield

    @property
    def started(self) -> bool:
        """Whether the run has a checkpoint to resume from."""
        return self.checkpoint.exists()

    @property
    def busy(self) -> bool:
        """Whether a process is executing the run, as far as this user can tell."""
        return is_locked(self.path / LOCK)

    def write_start(self, plan: Plan) -> None:
        """Write the user's settings and the complete settings."""
        write_text(self.path / USER_SETTINGS, to_json(plan.user_settings))
        write_text(self.path / CONFIG, to_json(plan.config.settings))

    def check_named(self, plan: Plan, run: str) -> None:
        """Raise an error if a directory named with `--name` contains anything but the run with hash `run`."""
        if plan.config.execution.name is None or not any(entry.name[0] != "." for entry in self._entries()):
            return
        noted = read_environment(self.path)
        if noted.get("run") != run:
            what = "other files"
            if "run" in noted:
                what = (
                    f"a run with different {_difference(plan, self.path / config_file(self.path), read_plugins(noted))}"
                )
            longer = f", continue it with --extend {self.path}" if "(iterations " in what else ""
            raise MedicError(f"{self.path} contains {what}: choose another --name{longer}, or delete {self.path}")

    def _entries(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def write_environment(self, plan: Plan, dataset: Dataset, run: str) -> None:
        """Write the run's hash, and everything besides the settings that the result depends on."""
        write_text(self.path / ENVIRONMENT, _json({"run": run, **environment(dataset, plan)}))

    def write_resumed(self, iteration: int) -> None:
        """If the commit has changed, record the iteration at which the run resumes with the new commit."""
        noted, now = read_environment(self.path), commit()
        resumed = noted.get("resumed", [])
        if not noted or not isinstance(resumed, list):  # damaged: tables then report an unknown commit
            return
        if [noted, *resumed][-1].get("commit") != now:
            changed = {**noted, "resumed": [*resumed, {"iteration": iteration, "commit": now}]}
            write_text(self.path / ENVIRONMENT, _json(changed))

    def write_checkpoint(self, iteration: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint, and write its iteration to a separate file."""
        save_checkpoint(self.checkpoint, state)
        write_text(self.path / ITERATION, f"{iteration}\n")

    def write_records(self, records: Sequence[dict[str, Any]]) -> None:
        """Write all evaluations so far, one per line."""
        write_text(self.path / RECORDS, "".join(json.dumps(record) + "\n" for record in records))

    def write_predictions(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write the prediction arrays, with one row per image."""
        with atomic_write(self.path / PREDICTIONS) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def write_done(self, seconds: float) -> None:
        """Mark the run as finished, and record its duration in seconds and file checksums."""
        write_text(self.path / DONE, make_seal(self.path, seconds))


def named_runs(folder: Path) -> dict[str, Path]:
    """Return the finished runs in a folder that were named with `--name`, keyed by hash."""
    paths = [path.parent for path in folder.glob(f"*/{DONE}")]
    return {str(run): path for path in paths if (run := read_environment(path).get("run", path.name)) != path.name}


def _difference(plan: Plan, config: Path, plugins: Sequence[Plugin]) -> str:
    """Describe how a plan differs from a run: in settings, plug-ins or, if both are equal, images or weights."""
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
    """Return the other run's value as text; for mappings, only the entries that differ."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return str(theirs)
    return ", ".join(f"{name}={value}" for name, value in theirs.items() if ours.get(name) != value) or str(theirs)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
