"""Doing many runs, and saying what became of them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medic.errors import MedicError, check_choice
from medic.experiments.executors import Executor
from medic.experiments.interrupts import Interrupts
from medic.experiments.overview import duration, make_overview
from medic.experiments.schedule import Schedule, estimate
from medic.experiments.sweeps import Job

EXECUTORS = ("local", "here")


@dataclass(frozen=True)
class Launch:
    """Where runs are done and how."""

    executor: str = "local"
    jobs: int | None = None
    retries: int = 1
    device: str = "auto"
    dry: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, EXECUTORS)
        if self.jobs is not None and self.jobs < 1:
            raise MedicError(f"jobs is {self.jobs}: give a whole number, 1 or more")
        if self.retries < 0:
            raise MedicError(f"retries is {self.retries}: give a whole number, 0 or more")

    def run(self, jobs: Sequence[Job]) -> Schedule:
        """Do what is missing; with `dry`, only say what that is."""
        schedule = Schedule(list({job.name: job for job in jobs}.values()), self.retries)
        if not schedule.jobs:
            raise MedicError("there is nothing to run: a sweep spans at least one run")
        if self.dry:
            return schedule
        with Interrupts() as interrupts:
            if schedule.missing:
                schedule.run(self._executor(schedule.jobs), make_overview(self.quiet), interrupts)
        return schedule

    def _executor(self, jobs: Sequence[Job]) -> Executor:
        from medic.experiments.executors.here import Here
        from medic.experiments.executors.local import Local

        if self.executor == "here":
            return Here()
        output = jobs[0].directory.path.parent
        return Local(self.jobs, self.device, output / "logs")


def print_plan(schedule: Schedule) -> None:
    """Say what would run, and how long it would take."""
    for job in schedule.jobs:
        print(f"{job.name}  {'there ' if job.directory.done else 'to do '}  {job.title}")
    print(f"{len(schedule.jobs)} runs, {len(schedule.there)} of them there, {schedule.missing} to do")
    if schedule.missing:
        seconds = estimate(schedule.jobs)
        rate = "unknown: no run like these has been measured" if seconds is None else duration(seconds)
        print(f"time to train, one after the other: {rate}")


def report(schedule: Schedule) -> int:
    """Say what failed and why; returns the exit code."""
    for name, event in schedule.failed.items():
        path: Path = schedule.by_name[name].directory.path
        print(f"medic: failed: {schedule.by_name[name].title}: {event.reason} ({path})", file=sys.stderr)
    return 1 if schedule.failed else 0
