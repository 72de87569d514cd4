"""The main loop of a sweep, which starts missing runs and retries failed runs."""

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from medic.errors import DiskFullError, counted
from medic.results.runs import sort_runs
from medic.runs.interrupts import Interrupts, Stopped
from medic.runs.layout import ERROR
from medic.runs.run import Run
from medic.sweeps.executors import Executor, Kind, Outcome
from medic.sweeps.overview import Overview
from medic.sweeps.sweep import Job, titles
from medic.utils.files import make_folder, read_object, write_text, writing
from medic.utils.progress import duration

logger = logging.getLogger(__name__)

POLL = 5.0
"""Seconds to wait before retrying a run that another process was executing."""
WAIT = 0.5
"""Seconds between checks for stop requests while the sweep waits."""


class Schedule:
    """The distinct runs in a sweep and their states.

    A failed run is retried up to `retries` times. A run whose process or machine died is restarted as often as the
    executor allows, which does not count as a failure. A run that runs out of memory next to other runs is retried with
    fewer runs at a time.
    """

    def __init__(self, jobs: Sequence[Job], retries: int = 1) -> None:
        self.by_name = {job.name: job for job in jobs}
        self.jobs = list(self.by_name.values())
        self.titles = titles(self.jobs)
        self.finished: list[str] = []
        """Runs that had already finished."""
        self.damaged: dict[str, str] = {}
        """Finished runs that cannot be read, with the reason."""
        self.running: dict[str, float] = {}
        """Runs in progress, with their start time (monotonic clock)."""
        self.done: dict[str, float] = {}
        """Runs completed by this sweep, with their duration in seconds."""
        self.retried: dict[str, str] = {}
        """Runs to be retried, with the reason for the last failure."""
        self.failed: dict[str, str] = {}
        self.queued: dict[str, str] = {}
        """Runs handed to a cluster, with the cluster job."""
        self._retries = retries
        self._most = len(self.jobs)
        """Maximum number of runs at a time, lowered when memory runs out."""
        self._beside: dict[str, int] = {}
        """For each run in progress, the largest number of simultaneous runs so far, including itself."""
        self._attempts: dict[str, Counter[Kind]] = defaultdict(Counter)
        self._due: dict[str, float] = {}
        """Waiting runs, with the earliest time they may start (monotonic clock)."""
        for job in self.jobs:
            self._sort(job)

    @property
    def ended(self) -> bool:
        """Whether no run is in progress or waiting."""
        return not (self._due or self.running)

    @property
    def waiting(self) -> list[Job]:
        """Runs that are waiting to start."""
        return [self.by_name[name] for name in self._due]

    @property
    def output(self) -> Path:
        """The output directory, which contains the run directories."""
        return self.jobs[0].directory.path.parent

    def finished_runs(self) -> tuple[Run, ...]:
        """Read the finished runs."""
        return sort_runs(self.by_name[name].directory.path for name in (*self.finished, *self.done)).finished

    def summary(self, slots: int) -> str:
        """Return the sweep's state in one line, with the estimated time left for `slots` runs at a time."""
        waiting, running, done = len(self._due), len(self.running), len(self.finished) + len(self.done)
        line = f"{done} of {len(self.jobs)} done, {running} running, {waiting} to do, {len(self.failed)} failed"
        line += f", {len(self.retried)} retried" if self.retried else ""
        if not self.done or self.ended:
            return line
        mean = sum(self.done.values()) / len(self.done)
        return f"{line}; {duration(mean * (waiting + 0.5 * running) / slots)} left"

    def run(self, executor: Executor, overview: Overview) -> None:
        """Execute the missing runs. Ctrl-C and SIGTERM raise `Stopped` after runs in progress save a checkpoint."""
        awaited = "stopping once every run in progress has saved a checkpoint"
        with overview.live, executor, Interrupts(awaited) as interrupts:
            make_folder("output", executor.output)
            while not self.ended:
                slots = min(executor.slots, self._most)
                self._start(executor, slots)
                if executor.waits:
                    overview.show(self, slots)
                for outcome in executor.wait(WAIT):
                    self._record(outcome, executor.losses)
                if interrupts.received is not None:
                    left = counted(len(self.waiting) + len(self.running), "run")
                    raise Stopped(f"stopped with {left} left: rerun the same command to resume", interrupts.received)
            if executor.waits:
                overview.show(self, executor.slots)

    def _sort(self, job: Job) -> None:
        """Set a run's state from its directory."""
        if not job.directory.done:
            self._due[job.name] = 0.0
            return
        if damage := Run(job.directory.path, unfinished=True).damage:
            self.damaged[job.name] = damage
        else:
            self.finished.append(job.name)

    def _start(self, executor: Executor, slots: int) -> None:
        """Start runs until `slots` of them are in progress."""
        now = time.monotonic()
        for job in self.waiting:
            if len(self.running) >= slots:
                return
            if self._due[job.name] > now:
                continue
            del self._due[job.name]
            if job.directory.done:  # another sweep has executed the run
                self._sort(job)
            else:
                self.running[job.name] = now
                self._beside[job.name] = 0
                for name in self.running:
                    self._beside[name] = max(self._beside[name], len(self.running))
                executor.submit(job)

    def _record(self, outcome: Outcome, losses: int) -> None:
        """Set a run's state from its outcome."""
        name = outcome.name
        del self.running[name]
        together = self._beside.pop(name)
        self.retried.pop(name, None)
        if outcome.kind == "done":
            self.done[name] = outcome.seconds
        elif outcome.kind == "queued":
            self.queued[name] = outcome.reason
        elif outcome.kind == "busy":
            self._due[name] = time.monotonic() + POLL
        elif outcome.kind == "memory" and together > 1:  # the run may fit next to fewer runs
            # The runs still in progress fit. If all of them failed, try half as many.
            if (fewer := max(len(self.running), together // 2)) < self._most:
                self._most = fewer
                logger.warning(
                    "%s: %s; retrying with %s at a time",
                    self.titles[name],
                    outcome.reason,
                    counted(self._most, "run"),
                )
            self.retried[name] = outcome.reason
            self._due[name] = 0.0
        elif outcome.kind == "full":  # no other run could write its files, either
            raise DiskFullError(outcome.reason)
        else:
            self._fail(outcome, losses if outcome.kind == "lost" else self._retries)

    def _fail(self, outcome: Outcome, allowed: int) -> None:
        """Save the error in the run directory, and retry the run after up to `allowed` outcomes of the same kind."""
        path, attempts = self.by_name[outcome.name].directory.path, self._attempts[outcome.name]
        attempts[outcome.kind] += 1
        entry = {"reason": outcome.reason, "trace": outcome.trace, "attempts": attempts.total(), "when": time.time()}
        if earlier := read_object(path / ERROR):
            entry["earlier"] = [*earlier.pop("earlier", []), earlier]
        with writing("output", path.parent):
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / ERROR, json.dumps(entry, indent=2) + "\n")
        if attempts[outcome.kind] > allowed:
            self.failed[outcome.name] = outcome.reason
        else:
            self.retried[outcome.name] = outcome.reason
            self._due[outcome.name] = 0.0
