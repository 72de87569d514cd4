"""Doing the runs of a sweep: what is missing is started, what fails is tried again, and all of it is shown."""

import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from medic.errors import DiskFullError, MedicError, counted, unwritten
from medic.files import write_text
from medic.runs.directory import seconds_taken
from medic.runs.interrupts import Interrupts, Stopped
from medic.sweeps.executors import Event, Executor, Kind
from medic.sweeps.overview import Overview, State
from medic.sweeps.sweep import Job, titles
from medic.tables.results import ERROR, Result, read_error, read_result

POLL = 5.0
"""Seconds after which a run that another process was at is looked at again."""
WAIT = 0.5
"""Seconds after which a sweep looks up from waiting for its runs, whether it was asked to stop."""
LOSSES = 5
"""How often a run is tried again whose process or machine was lost."""


@dataclass
class Schedule:
    """The runs of a sweep and where each of them is.

    A run that failed is tried again `retries` times. One that was lost (its process was killed, its machine went away)
    most often did nothing wrong, so that does not count as a failure; but a run may bring down its process every time,
    for want of memory say, so it is tried again `LOSSES` times and no more.
    """

    jobs: Sequence[Job]
    retries: int = 1
    done: dict[str, float] = field(default_factory=dict)
    """The seconds that each run took, of those that were done by now."""
    failed: dict[str, Event] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    """When each run under way was started."""

    def __post_init__(self) -> None:
        self.by_name = {job.name: job for job in self.jobs}
        self.titles = titles(self.jobs)
        self.there: list[str] = []
        self.damaged: dict[str, str] = {}
        """What is wrong with each run that says it is done, and cannot be read."""
        self._waiting: deque[str] = deque()
        for job in self.jobs:
            self._sort(job)
        self._attempts: dict[str, Counter[Kind]] = defaultdict(Counter)
        self._later: dict[str, float] = {}
        self.again: dict[str, Event] = {}
        """How the last attempt ended of each run that is tried again."""

    @property
    def missing(self) -> int:
        """How many runs there are to do, those under way and those that failed for good not counted."""
        return len(self._waiting) + len(self._later)

    @property
    def waiting(self) -> list[Job]:
        """The runs that nobody has started."""
        return [self.by_name[name] for name in self._waiting]

    def state(self, slots: int) -> State:
        """Where all runs are, so many of which are done at a time."""
        waiting, ended = self.missing, not (self.missing or self.running)
        mean = sum(self.done.values()) / len(self.done) if self.done else None
        return State(
            total=len(self.jobs),
            done=len(self.there) + len(self.done),
            waiting=waiting,
            running=[(self.titles[name], began) for name, began in self.running.items()],
            failed=[(self.titles[name], event.reason) for name, event in self.failed.items()],
            again=[(self.titles[name], event.reason) for name, event in self.again.items()],
            left=None if ended or mean is None else mean * (waiting + 0.5 * len(self.running)) / slots,
        )

    def run(self, executor: Executor, overview: Overview, interrupts: Interrupts) -> None:
        """Do all that is missing."""
        stop = True
        try:
            while self._waiting or self._later or self.running:
                self._return_later()
                while self._waiting and len(self.running) < executor.slots:
                    self._start(executor)
                overview.show(self.state(executor.slots))
                for event in executor.wait(WAIT):
                    self._take(event)
                if interrupts.received is not None:
                    left = self.missing + len(self.running)
                    raise Stopped(
                        f"stopped with {counted(left, 'run')} left; the same command goes on", interrupts.received
                    )
            stop = False
        finally:
            try:
                overview.show(self.state(executor.slots))
                executor.close(stop)
            finally:
                overview.close()

    def _sort(self, job: Job) -> None:
        """Put a run where it belongs by what is in its directory."""
        if not job.directory.done:
            self._waiting.append(job.name)
            return
        try:
            read_result(job.directory.path)
            self.there.append(job.name)
        except MedicError as error:
            self.damaged[job.name] = str(error)

    def _start(self, executor: Executor) -> None:
        job = self.by_name[self._waiting.popleft()]
        if job.directory.done:  # by another sweep, meanwhile
            self._sort(job)
            return
        self.running[job.name] = time.monotonic()
        executor.submit(job)

    def _take(self, event: Event) -> None:
        """Note what became of a run."""
        if event.kind == "started":
            self.running[event.job] = time.monotonic()
            return
        del self.running[event.job]
        directory = self.by_name[event.job].directory
        if event.kind == "done":
            self.done[event.job] = event.seconds
            self.again.pop(event.job, None)
        elif event.kind == "busy":
            self._later[event.job] = time.monotonic() + POLL
        elif event.kind == "full":  # for all others too
            raise DiskFullError(event.reason)
        else:
            self._fail(event, directory.path)

    def _fail(self, event: Event, path: Path) -> None:
        """Keep the error beside the run, and try again unless that was the last time."""
        attempts = self._attempts[event.job]
        attempts[event.kind] += 1
        found = {"reason": event.reason, "trace": event.trace, "attempts": attempts.total(), "when": time.time()}
        if earlier := read_error(path):
            found["earlier"] = [*earlier.pop("earlier", []), earlier]
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / ERROR, json.dumps(found, indent=2) + "\n")
        except OSError as error:
            raise unwritten("output", path.parent, error) from error
        if attempts[event.kind] > (LOSSES if event.kind == "lost" else self.retries):
            self.failed[event.job] = event
            self.again.pop(event.job, None)
        else:
            self.again[event.job] = event
            self._waiting.append(event.job)

    def _return_later(self) -> None:
        """Queue again what another process was at."""
        now = time.monotonic()
        for name in [name for name, due in self._later.items() if due <= now]:
            del self._later[name]
            self._waiting.append(name)


class Estimate(NamedTuple):
    """The seconds that runs will take, one after the other, and whether runs like each of them say so."""

    seconds: float
    like: bool


def estimate(jobs: Iterable[Job], results: Iterable[Result]) -> Estimate | None:
    """How long runs will take, by what finished ones took; None where there are none.

    Iterations take what they take in runs of the same method, backbone and dataset, and so does all that a run does
    besides; where there is no such run, what they take in all others.
    """
    costs: dict[tuple[Any, ...] | None, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        if taken := seconds_taken(result.path):
            for one in (_kind(result.settings), None):
                costs[one].append(_cost(result, taken))
    if not costs:
        return None
    means = {kind: [sum(column) / len(column) for column in zip(*found, strict=True)] for kind, found in costs.items()}
    seconds, like = 0.0, True
    for job in jobs:
        settings = job.complete.identity()
        kind = _kind(settings)
        like &= kind in means
        fixed, each = means.get(kind) or means[None]
        seconds += fixed + settings["iterations"] * each
    return Estimate(seconds, like)


def _cost(result: Result, seconds: float) -> tuple[float, float]:
    """The seconds of a run besides its iterations, and those of an iteration."""
    ends = [record["step"] for record in result.records]
    training = sum(
        (end - start) * record["step_time"]
        for record, start, end in zip(result.records, [0, *ends], ends, strict=False)
    )
    return max(0.0, seconds - training), training / ends[-1]


def _kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return settings["method"], settings["backbone"], settings["dataset"]
