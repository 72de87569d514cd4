"""Runs in this very process, one after the other."""

from collections import deque

from medic.experiments.executors.base import Event, attempt, plain
from medic.experiments.run import train
from medic.experiments.sweeps import Job


class Here:
    """No other process: for short sweeps, and for a debugger."""

    slots = 1

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Take the run; it is done when somebody waits for it."""
        self._jobs.append(job)

    def wait(self, seconds: float) -> list[Event]:
        """Do the run."""
        return [
            Event(job.name, *attempt(plain(job), lambda config: train(config, quiet=True))) for job in self._taken()
        ]

    def close(self, stop: bool) -> None:
        """Nothing is under way between two calls."""

    def _taken(self) -> list[Job]:
        taken, self._jobs = list(self._jobs), deque()
        return taken
