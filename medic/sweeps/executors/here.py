"""Runs in this very process, one after the other."""

import time

from medic.runs.train import train
from medic.sweeps.executors.base import Event, attempt, plain
from medic.sweeps.sweep import Job


class Here:
    """No other process: for short sweeps, and for a debugger."""

    slots = 1

    def __init__(self) -> None:
        self._job: Job | None = None

    def submit(self, job: Job) -> None:
        """Take the run; it is done when somebody waits for it."""
        self._job = job

    def wait(self, seconds: float) -> list[Event]:
        """Do the run; without one there is nothing to hear of, and the time passes."""
        if self._job is None:
            time.sleep(seconds)
            return []
        job, self._job = self._job, None
        return [attempt(job.name, plain(job), lambda config: train(config, quiet=True))]

    def close(self, stop: bool) -> None:
        """Nothing is under way between two calls."""
