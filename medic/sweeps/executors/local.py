"""Run sweeps on this machine, in warm worker processes. Each process has one GPU or a share of the cores."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from medic.sweeps.executors import PATIENCE, Executor, Outcome
from medic.utils.files import make_folder, writing

if TYPE_CHECKING:
    from medic.sweeps.sweep import Job

_SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_COUNTERS = Path("/proc/vmstat")


class _Worker:
    """A worker process, and the name of the run it is executing, if any."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self.run: str | None = None
        self._shortages = 0
        self.connection, other = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(other, log, environment))
        with _safe_path(), _without_main():
            self.process.start()
        other.close()

    def send(self, job: "Job") -> None:
        """Start a run."""
        self.run, self._shortages = job.name, _shortages()
        with suppress(BrokenPipeError):  # `outcome` reports that the process has died
            self.connection.send((job.name, job.portable()))

    def outcome(self) -> Outcome:
        """Return the outcome of a run that has ended or whose process has died."""
        run, self.run = str(self.run), None
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            if code == -signal.SIGKILL and _shortages() > self._shortages:
                return Outcome(
                    run, "memory", "out of memory, the system killed the process: lower --jobs or --batch-size"
                )
            return Outcome(run, "lost", f"the process ended with {ending}; see {self.log}")
        return outcome


@dataclass
class Local(Executor):
    """Executor for local processes. Their messages go to `logs` in the output directory."""

    _workers: list[_Worker] = field(default_factory=list, init=False)

    @property
    def slots(self) -> int:
        """One run per GPU or, without GPUs, per core."""
        return self.jobs or _gpus(self.device) or _cores()

    def submit(self, job: "Job") -> None:
        """Send the run to an idle process, or start a new process, replacing one that has died."""
        idle = [index for index, worker in enumerate(self._workers) if worker.run is None]
        # Prefer a live process: next to a new one, it would still hold memory from its earlier runs.
        alive = [index for index in idle if self._workers[index].process.is_alive()]
        index = [*alive, *idle, len(self._workers)][0]
        if not alive:
            self._workers[index : index + 1] = [self._start(index)]
        self._workers[index].send(job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Collect the outcomes sent by worker processes."""
        busy: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers if worker.run is not None}
        outcomes = [busy[connection].outcome() for connection in wait(list(busy), seconds)]
        if any(outcome.kind == "memory" for outcome in outcomes):
            for worker in self._workers:  # idle processes hold memory from earlier runs
                if worker.run is None:
                    worker.process.kill()
                    worker.process.join()
        return outcomes

    def close(self, stop: bool) -> None:
        """Shut down the processes. With `stop`, SIGTERM makes running processes save a checkpoint."""
        for worker in self._workers:
            worker.connection.close()
            if stop:
                worker.process.terminate()
        until = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.process.join(max(0.1, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()

    def _start(self, index: int) -> _Worker:
        threads = str(max(1, _cores() // self.slots))
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if gpus := _gpus(self.device):
            allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = allowed.split(",")[index % gpus] if allowed else str(index % gpus)
        log = self.output / "logs" / f"worker-{index}.log"
        make_folder("output", log.parent)
        with writing("output", log.parent):
            log.open("ab").close()
        return _Worker(log, environment)


def _serve(connection: "Connection", log: Path, environment: dict[str, str]) -> None:
    """Execute incoming runs until the sweep closes the connection or requests a stop."""
    os.setsid()  # Ctrl-C then reaches only the sweep, which stops its processes
    if sys.platform == "linux":  # elsewhere, the processes of a killed sweep finish their runs
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    from medic.sweeps.worker import execute  # torch reads the environment when it is imported

    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            connection.send(execute(*connection.recv()))


@contextmanager
def _without_main() -> Iterator[None]:
    """Prevent processes started inside from re-executing the user's script, which may lack a `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _safe_path() -> Iterator[None]:
    """Prevent modules in the working directory from shadowing Python's or medic's in processes started inside."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _shortages() -> int:
    """Return how many processes Linux's out-of-memory killer has ended; 0 on other systems."""
    counters = dict(line.split() for line in _COUNTERS.read_text().splitlines()) if _COUNTERS.exists() else {}
    return int(counters.get("oom_kill", 0))


def _gpus(device: str) -> int:
    if device == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
