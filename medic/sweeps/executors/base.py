"""What all executors share: what they are given, and what they say of it."""

import dataclasses
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from medic.errors import BusyError, DiskFullError, MedicError, TrainingError, first_line, without_credentials
from medic.runs.config import RunConfig
from medic.sweeps.sweep import Job

PATIENCE = 120.0
"""Seconds that a run has to save a checkpoint when it is asked to stop."""

Kind = Literal["started", "done", "failed", "busy", "lost", "full"]
"""What became of a run: `busy` if another process is at it, `lost` if whoever did it is gone, `full` if the disk is."""


class Event(NamedTuple):
    """Something happened to a run."""

    job: str
    """The name of the run's directory."""
    kind: Kind
    reason: str = ""
    """Why, in a line, if it failed or was lost."""
    trace: str = ""
    """Where in the code, if it is not known to be a mistake in what was asked."""
    seconds: float = 0.0
    """How long the run itself took."""


class Executor(Protocol):
    """Does runs, some at a time."""

    slots: int
    """How many runs at a time."""

    def submit(self, job: Job) -> None:
        """Start a run; at most `slots` are under way at a time."""

    def wait(self, seconds: float) -> list[Event]:
        """What has happened since it was last asked; waits so long for something to happen."""

    def close(self, stop: bool) -> None:
        """End. With `stop`, runs under way save a checkpoint and end first."""


def attempt(name: str, settings: dict[str, Any], train: Callable[[RunConfig], object]) -> Event:
    """Do a run, given as plain settings, and say what became of it."""
    began = time.perf_counter()
    try:
        train(RunConfig(**settings))
    except BusyError as error:
        return Event(name, "busy", first_line(error))
    except DiskFullError as error:
        return Event(name, "full", first_line(error))
    except (MedicError, TrainingError) as error:
        return Event(name, "failed", first_line(error))
    except Exception as error:  # a fault of ours, or of the machine: the sweep goes on, and tells
        trace = without_credentials(traceback.format_exc())
        return Event(name, "failed", f"{type(error).__name__}: {first_line(error)}", trace)
    return Event(name, "done", seconds=time.perf_counter() - began)


def plain(job: Job) -> dict[str, Any]:
    """The settings of a run, as values that any process understands: its paths are those of this one."""
    settings = dataclasses.asdict(job.config)
    paths = {name: settings[name] for name in ("output", "root", "weights") if settings[name] is not None}
    return {**settings, **{name: str(Path(path).absolute()) for name, path in paths.items()}}
