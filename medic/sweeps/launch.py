"""Doing many runs, and saying what became of them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medic.errors import MedicError, check_choice, counted
from medic.files import make_folder
from medic.runs.interrupts import Interrupts
from medic.sweeps.executors import Executor
from medic.sweeps.executors.slurm import LARGEST, Slurm, check_option
from medic.sweeps.overview import duration, make_overview
from medic.sweeps.schedule import Schedule, estimate
from medic.sweeps.sweep import Job
from medic.tables.results import collect, runs_are

EXECUTORS = ("local", "here", "ray", "slurm")
_OF_ONE = {"address": "ray", "host": "ray", "cpus_per_run": "ray", "slurm": "slurm"}
"""Options that only one executor has."""


@dataclass(frozen=True)
class Launch:
    """Where runs are done and how."""

    executor: str = "local"
    jobs: int | None = None
    """Runs at a time: what the machines have room for, unless given."""
    retries: int | None = None
    """How often a run that failed is tried again: once, unless given."""
    dry: bool = False
    quiet: bool = False
    address: str | None = None
    """HOST:PORT of a Ray cluster; without it one is started for the sweep."""
    host: str | None = None
    """Where that one listens, if not to this machine alone."""
    cpus_per_run: int | None = None
    slurm: Sequence[str] = ()
    """Options of `sbatch`, as `time=2:00:00`."""

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, EXECUTORS)
        for name, least in (("jobs", 1), ("retries", 0), ("cpus_per_run", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise MedicError(f"{name} is {value}: give a whole number, {least} or more")
        for name, executor in _OF_ONE.items():
            if getattr(self, name) and self.executor != executor:
                raise MedicError(f"--{name.replace('_', '-')} is an option of --executor {executor}")
        if self.address and self.host:
            raise MedicError("--address is a cluster that is there, and --host is for one that the sweep starts")
        if self.executor == "slurm" and self.retries is not None:
            raise MedicError("--retries is for executors that wait; with slurm the same command tries again")
        for option in self.slurm:
            check_option(option)

    def run(self, jobs: Sequence[Job]) -> Schedule:
        """Do what is missing; with `dry` say what that is, and to Slurm hand it over: then some of it stays missing."""
        schedule = self._plan(jobs)
        if self.executor == "slurm":
            print(self._hand_over(schedule).rstrip())
        elif self.dry:
            print_plan(schedule, self._slots(schedule.jobs))
        elif schedule.missing:
            with Interrupts() as interrupts:
                schedule.run(self._executor(schedule.jobs), make_overview(self.quiet), interrupts)
        return schedule

    def _hand_over(self, schedule: Schedule) -> str:
        """Give Slurm what is neither there nor queued; returns what there is to say, or with `dry` the script."""
        output = _output(schedule.jobs)
        slurm = Slurm(output, self.slurm, self.jobs)
        queued = slurm.queued()
        missing = [job for job in schedule.waiting if job.name not in queued]
        handed = missing[:LARGEST]
        if self.dry and handed:
            return slurm.write(handed)
        there, waiting, left = len(schedule.there), schedule.missing - len(missing), len(missing) - len(handed)
        said = f"{there} of {runs_are(len(schedule.jobs))} in {output}, {waiting} queued"
        if handed:
            said += f", {len(handed)} submitted as job {slurm.submit(handed)}, which writes to {output / 'logs'}"
        return f"{said}; the same command submits the other {left}" if left else said

    def _plan(self, jobs: Sequence[Job]) -> Schedule:
        """Where every run is; the same one twice is one."""
        each = list({job.name: job for job in jobs}.values())
        if not each:
            raise MedicError("there is nothing to run: a sweep spans at least one run")
        return Schedule(each) if self.retries is None else Schedule(each, self.retries)

    def _slots(self, jobs: Sequence[Job]) -> int | None:
        """How many runs there would be at a time, if that can be said before any is started."""
        if self.executor == "local":
            from medic.sweeps.executors.local import room

            return room(self.jobs, _device(jobs))
        return 1 if self.executor == "here" else self.jobs

    def _executor(self, jobs: Sequence[Job]) -> Executor:
        output = _output(jobs)
        if self.executor == "ray":
            from medic.sweeps.executors.ray import Ray

            return Ray(self.jobs, _device(jobs), output, self.address, self.host, self.cpus_per_run or 1)
        make_folder("output", output)
        if self.executor == "here":
            from medic.sweeps.executors.here import Here

            return Here()
        from medic.sweeps.executors.local import Local

        return Local(self.jobs, _device(jobs), output / "logs")


def _device(jobs: Sequence[Job]) -> str:
    """What runs need room on: `cpu` if none of them may use a GPU."""
    return "cpu" if all(job.config.device == "cpu" for job in jobs) else "auto"


def _output(jobs: Sequence[Job]) -> Path:
    """The directory that the directories of runs are in."""
    return jobs[0].directory.path.parent


def print_plan(schedule: Schedule, slots: int | None = None) -> None:
    """Say what would run, and how long it would take so many at a time."""
    busy = [job.name for job in schedule.waiting if job.directory.busy]
    states = {
        **dict.fromkeys(schedule.there, "there  "),
        **dict.fromkeys(schedule.damaged, "damaged"),
        **dict.fromkeys(busy, "running"),
    }
    for job in schedule.jobs:
        print(f"{job.name}  {states.get(job.name, 'to do  ')}  {schedule.titles[job.name]}")
    running = f" ({len(busy)} of them under way elsewhere)" if busy else ""
    there = f"{counted(len(schedule.jobs), 'run')}, {len(schedule.there)} of them there"
    damaged = f", {len(schedule.damaged)} damaged" if schedule.damaged else ""
    print(f"{there}, {schedule.missing} to do{running}{damaged}")
    if schedule.missing:
        output = _output(schedule.jobs)
        found = estimate(schedule.waiting, collect([output]).results if output.is_dir() else ())
        at_a_time = min(slots or 1, schedule.missing)
        rate = "unknown, as no run is finished" if found is None else duration(found.seconds / at_a_time)
        others = "" if found is None or found.like else ", by runs of other methods, backbones or datasets"
        print(f"time, {f'{at_a_time} at a time' if at_a_time > 1 else 'one after the other'}: {rate}{others}")


def report(schedule: Schedule) -> int:
    """Say what failed and why, and what is damaged; returns the exit code."""
    for name, event in schedule.failed.items():
        path: Path = schedule.by_name[name].directory.path
        print(f"medic: failed: {schedule.titles[name]}: {event.reason} ({path})", file=sys.stderr)
    for name, reason in schedule.damaged.items():
        path = schedule.by_name[name].directory.path
        print(f"medic: {path} is damaged: delete it and repeat ({reason})", file=sys.stderr)
    return 1 if schedule.failed or schedule.damaged else 0
