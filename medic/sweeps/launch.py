"""Executing the missing runs of a sweep, and reporting the result."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medic.errors import MedicError, counted
from medic.sweeps.estimate import estimate
from medic.sweeps.executors import Executor, make_executor
from medic.sweeps.overview import Overview, duration
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Job
from medic.tables.results import collect


@dataclass(frozen=True)
class Launch:
    """An executor and the options of a sweep that every executor has."""

    executor: Executor = field(default_factory=lambda: make_executor("local"))
    retries: int | None = None
    """How often a failed run is tried again: 1 by default."""
    dry_run: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.retries is not None and self.retries < 0:
            raise MedicError(f"--retries is {self.retries}: give a whole number, 0 or more")
        if self.retries is not None and not self.executor.waits:
            raise MedicError("--retries requires an executor that waits for runs: rerun the same command to retry")

    def run(self, jobs: Sequence[Job]) -> Schedule:
        """Execute the missing runs, or with `dry_run` print the plan."""
        if not jobs:
            raise MedicError("the sweep has no runs: give every setting of the span at least one value")
        schedule = Schedule(jobs, 1 if self.retries is None else self.retries)
        executor = dataclasses.replace(self.executor, output=_output(schedule), device=needed_device(jobs))
        if self.dry_run:
            print((executor.preview(schedule.waiting) or plan(schedule, executor.slots)).rstrip())
        elif schedule.waiting:
            schedule.run(executor, Overview(self.quiet))
        return schedule


def needed_device(jobs: Sequence[Job]) -> str:
    """Return `cpu` if every run was asked to use the CPU, otherwise `auto`."""
    return "cpu" if all(job.asked.get("device") == "cpu" for job in jobs) else "auto"


def _output(schedule: Schedule) -> Path:
    return schedule.jobs[0].directory.path.parent


def plan(schedule: Schedule, slots: int) -> str:
    """Return the state of every run, a line each, and the estimated time with `slots` runs at a time."""
    waiting = schedule.waiting
    running = [job.name for job in waiting if job.directory.busy]
    states = {
        **dict.fromkeys(schedule.finished, "finished"),
        **dict.fromkeys(schedule.damaged, "damaged"),
        **dict.fromkeys(running, "running"),
    }
    lines = [f"{name}  {states.get(name, 'to do'):<8}  {title}" for name, title in schedule.titles.items()]
    counts = f"{counted(len(schedule.jobs), 'run')}: {len(schedule.finished)} finished, {len(waiting)} to do"
    counts += f" ({len(running)} of them running elsewhere)" if running else ""
    lines.append(counts + (f", {len(schedule.damaged)} damaged" if schedule.damaged else ""))
    return "\n".join([*lines, *([_time(schedule, min(slots, len(waiting)))] if waiting else [])])


def _time(schedule: Schedule, slots: int) -> str:
    output = _output(schedule)
    found = estimate(schedule.waiting, collect([output]).results if output.is_dir() else ())
    seconds = "unknown, because no run is finished" if found is None else duration(found.seconds / slots)
    others = "" if found is None or found.similar else ", from runs of other methods, backbones or datasets"
    return f"estimated time, {f'{slots} runs at a time' if slots > 1 else 'one run at a time'}: {seconds}{others}"


def report(schedule: Schedule) -> int:
    """Print failed and damaged runs, a line each; return the exit code."""
    for name, reason in schedule.failed.items():
        path = schedule.by_name[name].directory.path
        print(f"medic: failed: {schedule.titles[name]}: {reason} ({path})", file=sys.stderr)
    for name, reason in schedule.damaged.items():
        path = schedule.by_name[name].directory.path
        print(f"medic: damaged: {path}: {reason}; delete it and rerun the same command", file=sys.stderr)
    return 1 if schedule.failed or schedule.damaged else 0
