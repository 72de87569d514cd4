"""Run sweeps on a Ray cluster, with one task per run. Ray restarts tasks whose worker died."""

import logging
import math
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from medic.errors import MedicError, first_line, lacking, warn
from medic.runs.interrupts import Stopped
from medic.runs.layout import CONFIG, DONE, USER_SETTINGS
from medic.runs.seal import make_seal, read_seal
from medic.sweeps.executors import PATIENCE, Executor, Outcome, option
from medic.utils.command import noted_command
from medic.utils.files import atomic_write, make_folder, write_text, writing

if TYPE_CHECKING:
    from medic.runs.directory import RunDirectory
    from medic.sweeps.sweep import Job

LOCALHOST = "127.0.0.1"
ANSWER = 5.0
"""Connection timeout for a cluster, in seconds."""
EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An empty HTTP/2 SETTINGS frame: 3 bytes of length, type 4, flags, and 4 bytes for stream 0."""


@dataclass
class Ray(Executor):
    """Executor for a Ray cluster, or for a local Ray started for the sweep."""

    address: str | None = option("Ray cluster to join (default: start one)", metavar="HOST:PORT")
    host: str | None = option("address for a locally started Ray to listen on (default: localhost)", metavar="HOST")
    cpus_per_run: int | None = option("CPU cores per run on Ray (default: 1)", type=int, metavar="N")

    losses: ClassVar[int] = 0  # Ray restarts tasks itself before it reports a loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address and self.host:
            raise MedicError("--address joins a cluster and --host starts one: use only one of them")
        self._cores = self.cpus_per_run or 1
        self._room = self.jobs or 1
        self._jobs: dict[Any, Job] = {}

    @property
    def slots(self) -> int:
        """One run per GPU or, without GPUs, per `cpus_per_run` cores. Tasks that do not fit wait in Ray's queue."""
        return self._room

    def __enter__(self) -> Self:
        connected = connect(self.address, self.host, (self.jobs or 0) * self._cores or len(os.sched_getaffinity(0)))
        import ray

        self._ray = ray
        self._disconnect = ray.shutdown if connected else lambda: None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = 0 if self.device == "cpu" else sum(int(node.get("GPU", 0)) for node in nodes)
        self._room = self.jobs or gpus or sum(int(node.get("CPU", 0)) // self._cores for node in nodes)
        if self._cores > max(node.get("CPU", 0) for node in nodes):
            self._disconnect()
            raise MedicError(
                f"--cpus-per-run {self._cores} is too large: no machine in the cluster has that many cores"
            )
        # By default, Ray ends a process after one GPU task (`max_calls`), so no process would stay warm.
        resources: dict[str, Any] = {"num_cpus": self._cores, "num_gpus": share(gpus, self._room), "max_calls": 0}
        self._task = ray.remote(max_retries=Executor.losses, **resources)(_run)
        return self

    def submit(self, job: "Job") -> None:
        """Start a task. The run directory is created first: machines that can see it share the output directory."""
        make_folder("output", job.directory.path)
        self._jobs[self._task.remote(job.name, job.portable(), self._cores, noted_command())] = job

    def wait(self, seconds: float) -> list[Outcome]:
        """Collect the outcomes of finished tasks."""
        if not self._jobs:
            time.sleep(seconds)
            return []
        ended, _ = self._ray.wait(list(self._jobs), timeout=seconds)
        return [self._outcome(task, self._jobs.pop(task)) for task in ended]

    def close(self, stop: bool) -> None:
        """Cancel the tasks in progress, which save a checkpoint, and disconnect from the cluster."""
        try:
            if stop and self._jobs:
                for task in self._jobs:
                    self._ray.cancel(task)
                self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=PATIENCE)
        except self._ray.exceptions.RayError as error:
            warn(f"Ray: {first_line(error)}")
        finally:
            self._disconnect()

    def _outcome(self, task: Any, job: "Job") -> Outcome:
        from medic.sweeps.worker import attempt

        outcome: Outcome
        try:
            outcome, files = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # raised outside the run
            reason = f"{type(error.cause).__name__}: {first_line(error.cause)}; every machine must have the same medic"
            return Outcome(job.name, "failed", reason, str(error))
        except self._ray.exceptions.RayError as error:
            return Outcome(job.name, "lost", f"Ray lost its worker {Executor.losses + 1} times: {first_line(error)}")
        if files:
            return attempt(job.name, lambda: store(files, job.directory))._replace(seconds=outcome.seconds)
        return outcome


def _run(
    name: str, settings: Mapping[str, Any], cores: int, command: Sequence[str]
) -> tuple[Outcome, dict[str, bytes]]:
    """Execute a run as a Ray task. Also return the run's files if this machine does not share the output directory."""
    import torch

    from medic.sweeps.worker import execute

    torch.set_num_threads(cores)
    sys.argv[:] = command  # the run records this command instead of Ray's
    try:
        if (Path(settings["output"]) / name).is_dir():
            return execute(name, settings), {}
        with tempfile.TemporaryDirectory(prefix="medic-") as folder:
            outcome = execute(name, {**settings, "output": folder})
            return outcome, collect(Path(folder) / name, settings["output"]) if outcome.kind == "done" else {}
    except Stopped as stopped:  # the machine may be shutting down, so retry the run later
        return Outcome(name, "busy", str(stopped)), {}


def collect(path: Path, output: str) -> dict[str, bytes]:
    """Return a finished run's files by name, without its checkpoint, after setting `output` in its settings."""
    for file in (path / CONFIG, path / USER_SETTINGS):
        file.write_bytes(file.read_bytes().replace(str(path.parent).encode(), output.encode()))
    write_text(path / DONE, make_seal(path, read_seal(path).seconds))
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in files.items() if not name.startswith((".", "checkpoint/"))}


def store(files: Mapping[str, bytes], directory: "RunDirectory") -> None:
    """Write the files of a run executed on another machine, `done` last."""
    with directory.locked(), writing("run", directory.path):
        for name in sorted(files, key="done".__eq__):
            path = directory.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(files[name])


def share(gpus: int, runs: int) -> float:
    """Return the number of GPUs per run: 1, or a fraction if there are more runs than GPUs."""
    return math.floor(10_000 / math.ceil(runs / gpus)) / 10_000 if gpus else 0.0  # Ray's resolution is 1/10000


def connect(address: str | None, host: str | None, cores: int) -> bool:
    """Join the cluster at `address`, or start a local Ray with `cores` cores that listens on `host`.

    Returns False if this process is already connected; the existing connection is then used and kept.
    """
    host = LOCALHOST if host in (None, "localhost") else host
    options: dict[str, Any]
    if address is None:
        _prepare(host)
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False, "_node_ip_address": host}
    else:
        _check_answers(address)
        options = {"address": address}
    try:
        import ray
    except ModuleNotFoundError as error:
        raise lacking("executor 'ray' requires ray", "ray") from error
    if ray.is_initialized():
        if address is not None:
            raise MedicError(f"--address {address}: this process is already connected to Ray; omit --address")
        return False
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        if address is None and (listens := ray.util.get_node_ip_address()) != host:
            raise RuntimeError(f"it listens on {listens}, because ray was imported before medic")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        check = (
            ""
            if address is None
            else "; check that `ray start` ran here too, with the same Ray version and RAY_AUTH_MODE"
        )
        raise MedicError(f"cannot connect to Ray at {address or host}: {first_line(error)}{check}") from error
    return True


def _prepare(host: str) -> None:
    """Check that this machine can listen on `host`, and set the environment variables for a local Ray."""
    try:
        socket.create_server((host, 0)).close()  # Ray would wait for minutes
    except OSError as error:
        raise MedicError(f"--host {host} is not an address of this machine: use one that is, or omit --host") from error
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_task_oom_retries", str(Executor.losses))  # unlimited by default
    if host == LOCALHOST:  # otherwise Ray listens on every address of the machine
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # otherwise Ray stores a token in the home directory


def _check_answers(address: str) -> None:
    """Raise an error if no Ray answers at the address. Ray itself would retry noisily for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise MedicError(f"--address must be HOST:PORT, as printed by `ray start --head`, got {address}")
    check = "check host, port and firewall, and that `ray start --head` runs there"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0" and not _speaks_grpc(connection):
                raise MedicError(f"the server at --address {address} is not Ray: {check}")
    except (OSError, OverflowError) as error:
        raise MedicError(f"cannot reach Ray at --address {address}: {error}; {check}") from error


def _speaks_grpc(connection: socket.socket) -> bool:
    """Return whether a server responds like gRPC, with an HTTP/2 SETTINGS frame (RFC 9113, 3.4)."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS)
    begun = b""
    while len(begun) < len(EMPTY_SETTINGS) and (part := connection.recv(len(EMPTY_SETTINGS) - len(begun))):
        begun += part
    return begun[3:4] + begun[5:] == EMPTY_SETTINGS[3:4] + EMPTY_SETTINGS[5:]
