"""Train one run of a sweep in the current process and return its outcome."""

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from medic.errors import (
    BusyError,
    DiskFullError,
    MedicError,
    OutOfMemoryError,
    TrainingError,
    first_line,
    without_credentials,
)
from medic.runs.train import train
from medic.sweeps.executors import Outcome


def execute(name: str, settings: Mapping[str, Any]) -> Outcome:
    """Train the run called `name` and return the outcome. A stop request saves a checkpoint and raises `Stopped`."""

    def run() -> None:
        trained = train(settings, quiet=True).path.name
        if trained != name:
            raise MedicError(f"the worker trained run {trained} instead of {name}: its medic version or images differ")

    return attempt(name, run)


def attempt(name: str, action: Callable[[], None]) -> Outcome:
    """Perform an action for the run called `name` and return the outcome."""
    began = time.perf_counter()
    try:
        action()
    except BusyError as error:
        return Outcome(name, "busy", first_line(error))
    except DiskFullError as error:
        return Outcome(name, "full", first_line(error))
    except OutOfMemoryError as error:
        return Outcome(name, "memory", first_line(error))
    except (MedicError, TrainingError) as error:
        return Outcome(name, "failed", first_line(error))
    except Exception as error:  # a bug or a hardware fault: the other runs continue
        trace = without_credentials(traceback.format_exc())
        return Outcome(name, "failed", f"{type(error).__name__}: {first_line(error)}", trace)
    return Outcome(name, "done", seconds=time.perf_counter() - began)
