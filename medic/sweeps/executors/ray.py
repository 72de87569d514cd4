"""Runs on Ray: one actor for each run at a time, which stays warm between runs and is replaced when it is lost."""

import math
import os
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from medic.errors import MedicError, warn
from medic.runs.command import noted_command
from medic.runs.config import RunConfig
from medic.runs.interrupts import Interrupts, Stopped
from medic.runs.train import train
from medic.sweeps.executors.artifacts import Mark, pack, unpack
from medic.sweeps.executors.base import PATIENCE, Event, attempt, plain
from medic.sweeps.executors.cluster import connect, last_line
from medic.sweeps.sweep import Job

CONTROL = "control"
"""The thread of an actor that hears what is asked of it during a run."""
STARTS = 5
"""Actors in a row that may be lost before they can work; then something is wrong with all of them."""
ROOM = 30.0
"""Seconds without any actor after which it is said that the cluster has no room."""


class Node(NamedTuple):
    """What a machine of the cluster has."""

    cores: float
    gpus: float


class Place(NamedTuple):
    """Where an actor is."""

    process: int
    machine: str


class Answer(NamedTuple):
    """What an actor says of a run; `files` are those of a run that was done where the sweep cannot see them."""

    event: Event
    files: dict[str, bytes]


class Worker:
    """The actor: a process of the cluster that does one run after the other.

    Where it finds `mark` it writes into the output directory itself, and goes on from checkpoints there. Elsewhere it
    works in a temporary folder and sends the finished run.
    """

    def __init__(self, mark: str, cores: int, command: Sequence[str]) -> None:
        torch.set_num_threads(cores)
        sys.argv[:] = command  # a run notes what it was started by, and Ray's own line is full of the cluster's details
        self._shared = Path(mark).exists()
        self._interrupts = Interrupts()

    def ready(self) -> Place:
        """Say that it can work, and where it is."""
        return Place(os.getpid(), socket.gethostname())

    def run(self, name: str, settings: dict[str, Any]) -> Answer:
        """Do a run, which should come to this name."""
        files: dict[str, bytes] = {}

        def do(config: RunConfig) -> None:
            run = train(config, quiet=True, interrupts=self._interrupts)
            if run.path.name != name:
                raise MedicError(f"the worker came to another run, {run.path.name}: its medic or its images differ")
            if not self._shared:
                files.update(pack(run.path))

        with tempfile.TemporaryDirectory(prefix="medic-") as folder:
            try:
                event = attempt(name, settings if self._shared else {**settings, "output": folder}, do)
            except Stopped as stopped:
                event = Event(name, "lost", str(stopped))
        return Answer(event, files)

    def stop(self) -> None:
        """Let the run under way save a checkpoint and end."""
        self._interrupts.ask()


@dataclass(eq=False)
class _Slot:
    """An actor, and the answer it owes: to the question whether it is ready, or of a run."""

    actor: Any
    answer: Any
    job: Job | None = None
    place: Place | None = None


class Ray:
    """Actors of a cluster, or of this machine."""

    def __init__(
        self,
        slots: int | None,
        device: str,
        output: Path,
        address: str | None = None,
        host: str | None = None,
        cores: int = 1,
    ) -> None:
        """As many as there is room for, each with its cores and its GPU, or with a share of one if more are asked for.

        Without an address a Ray of the sweep's own is started, which listens on `host`, or to this machine alone.
        """
        self._disconnect = connect(address, host, slots * cores if slots else len(os.sched_getaffinity(0)))
        try:
            import ray

            nodes = [_node(found["Resources"]) for found in ray.nodes() if found["Alive"]]
            gpus = gpu_share(nodes, slots) if device != "cpu" else 0.0
            self.slots = slots or room(nodes, cores, gpus)
            if self.slots < 1:
                what = f"no machine of the cluster has as many cores{' and a GPU' if gpus else ''}"
                raise MedicError(f"cpus_per_run is {cores}: {what}")
            self._mark = Mark(output)
        except BaseException:
            self._disconnect()
            raise
        resources: dict[str, Any] = {"num_cpus": cores, "num_gpus": gpus, "concurrency_groups": {CONTROL: 1}}
        self._actors: Any = ray.remote(max_restarts=0, **resources)(Worker)
        self._cores = cores
        self._queue: deque[Job] = deque()
        self._began: float | None = time.monotonic()  # until an actor can work, or it was said that none can
        self._lost_starts = 0
        self._slots = [self._start() for _ in range(self.slots)]

    def submit(self, job: Job) -> None:
        """Let the next actor that is free have the run."""
        self._queue.append(job)

    def wait(self, seconds: float) -> list[Event]:
        """Give out runs, and listen to the actors."""
        import ray

        if started := self._give_out():
            return started
        owed = {slot.answer: slot for slot in self._slots if slot.answer is not None}
        if not owed:
            time.sleep(seconds)
            return []
        self._say_if_full()
        answers, _ = ray.wait(list(owed), timeout=seconds)
        events = (self._hear(owed[answer]) for answer in answers)
        return [event for event in events if event is not None]

    def close(self, stop: bool) -> None:
        """Let the actors end; those that are at a run save it first."""
        import ray

        try:
            owed = [slot for slot in self._slots if slot.job is not None]
            if stop and owed:
                for slot in owed:
                    slot.actor.stop.options(concurrency_group=CONTROL).remote()
                ray.wait([slot.answer for slot in owed], num_returns=len(owed), timeout=PATIENCE)
            for slot in self._slots:
                ray.kill(slot.actor)
        except ray.exceptions.RayError as error:  # the cluster is gone, and our actors with it
            warn(f"Ray: {last_line(error)}")
        finally:
            self._mark.remove()
            self._disconnect()

    def _start(self) -> _Slot:
        actor = self._actors.remote(str(self._mark.path), self._cores, noted_command())
        return _Slot(actor, actor.ready.remote())

    def _replace(self, slot: _Slot) -> None:
        """Have another actor in the place of one that is lost."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(slot.actor)  # it may only be out of reach
        self._slots[self._slots.index(slot)] = self._start()

    def _give_out(self) -> list[Event]:
        """Start what waits for an actor, on those that are free."""
        events = []
        for slot in self._slots:
            if slot.answer is None and self._queue:
                slot.job = self._queue.popleft()
                slot.answer = slot.actor.run.remote(slot.job.name, plain(slot.job))
                events.append(Event(slot.job.name, "started"))
        return events

    def _hear(self, slot: _Slot) -> Event | None:
        """Take what an actor answers."""
        import ray

        answer, job, slot.answer, slot.job = slot.answer, slot.job, None, None
        try:
            said = ray.get(answer)
        except ray.exceptions.RayError as error:
            return self._miss(slot, job, error)
        if job is not None:
            return _at_home(job, said)
        slot.place, self._began, self._lost_starts = said, None, 0
        return None

    def _miss(self, slot: _Slot, job: Job | None, error: Any) -> Event | None:
        """Find out what it means that an answer did not come; an actor that is lost gets a successor."""
        import ray

        raised = isinstance(error, ray.exceptions.RayTaskError)  # by our code around the run, and the actor lives
        if job is None:
            self._lost_starts += 1
            if raised or getattr(error, "actor_init_failed", False) or self._lost_starts >= STARTS:
                raise MedicError(f"Ray workers cannot start: {last_line(error)}; every machine needs the same medic")
        elif raised:
            return Event(job.name, "failed", last_line(error), str(error))
        self._replace(slot)
        if job is None or slot.place is None:
            return None
        process, machine = slot.place
        return Event(job.name, "lost", f"its worker, process {process} on {machine}, is gone: {last_line(error)}")

    def _say_if_full(self) -> None:
        """Tell, once, that nothing can run because others use the cluster."""
        if self._began is not None and time.monotonic() - self._began > ROOM:
            self._began = None
            warn(f"Ray has had no room for a run of {self._cores} cores yet; waiting")


def room(nodes: Iterable[Node], cores: int, gpus: float) -> int:
    """How many runs fit at a time, each with so many cores and so much of a GPU."""
    if not gpus:
        return sum(int(node.cores) // cores for node in nodes)
    return sum(min(int(node.cores) // cores, int(node.gpus) * int(1 / gpus)) for node in nodes)


def gpu_share(nodes: Iterable[Node], slots: int | None) -> float:
    """What a run gets of a GPU: all of one, a share where there are fewer than runs, nothing where there are none."""
    whole = sum(int(node.gpus) for node in nodes)
    if not whole:
        return 0.0
    each = math.ceil((slots or 1) / whole)
    return math.floor(10_000 / each) / 10_000  # Ray counts in these


def _node(resources: dict[str, float]) -> Node:
    return Node(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def _at_home(job: Job, said: Answer) -> Event:
    """What became of a run, once its files are here."""
    if not said.files:
        return said.event
    here = attempt(job.name, plain(job), lambda config: unpack(said.files, job.directory))
    return here._replace(seconds=said.event.seconds)
