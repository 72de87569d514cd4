"""Runs on this machine: processes that stay warm between runs, each with its share of the cores or its own GPU."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from medic.errors import unwritten
from medic.files import make_folder
from medic.runs.command import noted_command
from medic.sweeps.executors.base import PATIENCE, Event, plain
from medic.sweeps.sweep import Job


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    log: Path
    job: str | None = None
    heard: bytes = b""


class Local:
    """Processes of this machine."""

    def __init__(self, slots: int | None, device: str, logs: Path) -> None:
        """As many as there are GPUs, or else cores; `logs` is a folder for what they say."""
        gpus, cores = _gpus(device), _cores()
        self.slots = room(slots, device)
        make_folder("output", logs)
        threads = str(max(1, cores // self.slots))
        shares = [{"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} for _ in range(self.slots)]
        for index, share in enumerate(shares if gpus else []):
            share["CUDA_VISIBLE_DEVICES"] = _visible(index % gpus)
        self._selector = selectors.DefaultSelector()
        self._workers = [self._start(share, logs / f"worker-{index}.log") for index, share in enumerate(shares)]

    def submit(self, job: Job) -> None:
        """Give the run to a process that has none."""
        worker = next(worker for worker in self._workers if worker.job is None)
        if worker.process.poll() is not None:  # it died when nothing was asked of it
            worker = self._replace(worker)
        worker.job = job.name
        assert worker.process.stdin is not None
        try:
            asked = {"name": job.name, "settings": plain(job), "command": noted_command()}
            worker.process.stdin.write(json.dumps(asked).encode() + b"\n")
            worker.process.stdin.flush()
        except BrokenPipeError:
            pass  # `wait` finds it dead and says so

    def wait(self, seconds: float) -> list[Event]:
        """Listen to the processes."""
        events: list[Event] = []
        until = time.monotonic() + seconds
        while not events and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                events += self._hear(key.data)
        return events

    def close(self, stop: bool) -> None:
        """Let the processes end; those that are at a run save it first."""
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            if stop and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._selector.close()

    def _start(self, environment: dict[str, str], log: Path) -> _Worker:
        with self._opened(log) as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "medic.sweeps.executors.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the sweep, which tells them
            )
        assert process.stdout is not None
        worker = _Worker(process, environment, log)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    @staticmethod
    def _opened(log: Path) -> IO[bytes]:
        try:
            return log.open("ab")
        except OSError as error:
            raise unwritten("output", log.parent, error) from error

    def _replace(self, worker: _Worker) -> _Worker:
        """Start another process in the place of a dead one, which is not listened to any more."""
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        fresh = self._start(worker.environment, worker.log)
        self._workers[self._workers.index(worker)] = fresh
        return fresh

    def _hear(self, worker: _Worker) -> list[Event]:
        """What a process has said, or that it is gone."""
        stream = worker.process.stdout
        assert stream is not None
        said = os.read(stream.fileno(), 1 << 16)
        if not said:
            code = worker.process.wait()
            lost, worker.job = worker.job, None
            self._replace(worker)
            reason = f"its process ended with {_ending(code)}; see {worker.log}"
            return [] if lost is None else [Event(lost, "lost", reason)]
        *lines, worker.heard = (worker.heard + said).split(b"\n")
        events = [Event(**json.loads(line)) for line in lines]
        if any(event.kind != "started" for event in events):
            worker.job = None
        return events


def room(slots: int | None, device: str) -> int:
    """How many runs this machine does at a time, unless it is told."""
    return slots or _gpus(device) or _cores()


def _gpus(device: str) -> int:
    return torch.cuda.device_count() if device != "cpu" else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _visible(index: int) -> str:
    """The name of a GPU among those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return allowed.split(",")[index] if allowed else str(index)
