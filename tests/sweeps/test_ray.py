"""Sweeps on Ray: the same runs as on this machine, whatever becomes of the workers."""

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time

import pytest
import torch
from medic.runs.config import RunConfig

import medic
from medic.errors import MedicError
from medic.runs.interrupts import Interrupts, Stopped
from medic.sweeps.executors import cluster
from medic.sweeps.executors import ray as executor
from medic.sweeps.executors.artifacts import Mark, pack, unpack
from medic.sweeps.executors.base import Event, plain
from medic.sweeps.executors.ray import Node, Ray, Worker, gpu_share, room
from medic.sweeps.launch import Launch
from medic.sweeps.overview import Silent
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner, Sweep
from medic.tables.results import collect
from medic.training import load_checkpoint

# Not `importorskip`: a Ray that listens to this machine alone must not have been imported before.
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
TIMES = ("step_time", "mem_gb")


def jobs(settings, output, **span):
    return Planner().jobs(Sweep(settings, span).configs(output))


def measured(output):
    """What a table is made of, by run."""
    found = collect([output])
    assert (found.unfinished, found.failed, found.damaged) == ((), {}, {})
    return {
        result.path.name: [
            {key: value for key, value in record.items() if key not in TIMES} for record in result.records
        ]
        for result in found.results
    }


@pytest.fixture(scope="module")
def running(folder):
    """A Ray of two cores, as a sweep starts it."""
    before = signal.getsignal(signal.SIGTERM)
    disconnect = cluster.connect(None, None, 2)
    import ray

    assert signal.getsignal(signal.SIGTERM) is before
    yield ray.get_runtime_context().gcs_address
    disconnect()
    assert not ray.is_initialized()


class Then(Silent):
    """Does something as soon as a run under way has a checkpoint, once."""

    def __init__(self, schedule, what):
        self._schedule, self._what = schedule, what
        self.done = False

    def show(self, state):
        for name in self._schedule.running:
            job = self._schedule.by_name[name]
            if not self.done and job.directory.checkpoint.exists():
                self.done = True
                self._what(job)


@needs_ray
def test_a_killed_worker_changes_nothing(folder, running, tmp_path):
    """Three runs by two workers, one of which is killed in the middle of its run: the same table as on this machine."""
    settings = {**folder, "iterations": 20, "checkpoint_every": 1}
    Launch(jobs=2, quiet=True).run(jobs(settings, tmp_path / "local", seed=range(3)))

    wanted = jobs(settings, tmp_path / "ray", seed=range(3))
    schedule, workers = Schedule(wanted, retries=0), Ray(None, "cpu", tmp_path / "ray")
    assert workers.slots == 2
    killed = []

    def kill(job):
        slot = next(slot for slot in workers._slots if slot.job is job)
        killed.append(slot.place.process)
        os.kill(slot.place.process, signal.SIGKILL)

    schedule.run(workers, Then(schedule, kill), Interrupts())
    assert len(killed) == 1
    assert killed[0] not in {slot.place.process for slot in workers._slots if slot.place is not None}
    assert schedule._attempts.popitem()[1] == {"lost": 1}
    assert (schedule.failed, len(schedule.done)) == ({}, 3)
    assert measured(tmp_path / "ray") == measured(tmp_path / "local")
    assert not [path for path in (tmp_path / "ray").iterdir() if path.name.startswith(".")]
    environment = json.loads((wanted[0].directory.path / "environment.json").read_text())
    assert environment["command"][1:] == sys.argv[1:]


@needs_ray
def test_runs_under_way_save_a_checkpoint_when_the_sweep_is_stopped(folder, running, tmp_path):
    [job] = jobs({**folder, "iterations": 10**6, "evaluate_every": 10**6}, tmp_path)
    schedule, interrupts = Schedule([job]), Interrupts()
    with pytest.raises(Stopped, match="stopped with 1 run left"):
        schedule.run(Ray(1, "cpu", tmp_path), Then(schedule, lambda job: interrupts.ask()), interrupts)
    assert not job.directory.done
    assert load_checkpoint(job.directory.checkpoint)["trainer"]["iteration"] > 0
    with job.directory.locked():  # nobody is at it any more
        pass


@needs_ray
def test_workers_that_cannot_start(running, folder, tmp_path, monkeypatch):
    class Broken(Worker):
        def __init__(self, mark, cores, command):
            raise ModuleNotFoundError("No module named 'medic'")

    monkeypatch.setattr(executor, "Worker", Broken)
    schedule = Schedule(jobs(folder, tmp_path))
    with pytest.raises(MedicError, match=r"Ray workers cannot start: .*No module named 'medic'; every machine needs"):
        schedule.run(Ray(1, "cpu", tmp_path), Silent(), Interrupts())


@needs_ray
def test_a_cluster_without_room(running, tmp_path):
    with pytest.raises(MedicError, match="cpus_per_run is 64: no machine of the cluster has as many cores"):
        Ray(None, "cpu", tmp_path, cores=64)
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_a_ray_that_is_started_listens_to_this_machine_alone(running):
    host, port = running.split(":")
    assert host == "127.0.0.1"
    cluster._check_answers(running)
    others = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {host}
    for other in others:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, int(port)), 1)
    with pytest.raises(MedicError, match="connected to Ray already"):
        cluster.connect(running, None, 1)


def refused() -> str:
    """An address that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_that_does_not_answer(monkeypatch):
    began = time.monotonic()
    with pytest.raises(MedicError, match=r"no Ray answers at 127.0.0.1:\d+: Connection refused; check host, port and"):
        cluster.connect(refused(), None, 1)
    for address in ("auto", "127.0.0.1", "host:", ":6379", "ray://host"):
        with pytest.raises(MedicError, match="give HOST:PORT, as `ray start --head` prints it"):
            cluster.connect(address, None, 1)
    monkeypatch.setattr(cluster, "ANSWER", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MedicError, match=f"no Ray answers at {address}: timed out"):
            cluster.connect(address, None, 1)
    assert time.monotonic() - began < 10


def test_a_host_of_another_machine():
    for host in ("192.0.2.77", "no.such.host.invalid"):
        with pytest.raises(MedicError, match=f"host {host} is not an address of this machine"):
            cluster.connect(None, host, 1)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MedicError, match=r"executor 'ray' needs the package ray: pip install 'medic\[ray\]'"):
        cluster.connect(None, None, 1)


def test_what_answers_may_not_be_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MedicError, match="what listens there is not Ray"):
            cluster.connect(f"127.0.0.1:{server.getsockname()[1]}", None, 1)
        thread.join()


def make_worker(mark):
    return Worker(mark, 1, sys.argv)


SHORT = {"target": "street", "iterations": 2, "batch_size": 2, "device": "cpu"}


@pytest.fixture
def job(mini, tmp_path):
    threads = torch.get_num_threads()  # a worker sets its own
    yield jobs({"dataset": mini, "method": "erm", **SHORT}, tmp_path / "runs")[0]
    torch.set_num_threads(threads)


def test_a_worker_that_does_not_see_the_output_sends_the_run(job, tmp_path):
    """Its output is a folder of its own, of which the sweep gets all but the checkpoint."""
    worker = make_worker(str(tmp_path / "not" / "here"))
    answer = worker.run(job.name, plain(job))
    assert (answer.event.kind, answer.event.reason) == ("done", "")
    assert not job.directory.path.exists()
    assert executor._at_home(job, answer) == Event(job.name, "done", seconds=answer.event.seconds)
    run = medic.Run(job.directory.path)
    assert run.config.output == str(job.directory.path.parent)
    assert run.metrics["acc"] == run.record["target"]["acc"]
    assert not job.directory.checkpoint.exists()
    assert run.model is not None


def test_a_worker_that_sees_the_output_writes_there(job):
    mark = Mark(job.directory.path.parent)
    answer = make_worker(str(mark.path)).run(job.name, plain(job))
    assert (answer.event.kind, answer.files) == ("done", {})
    assert job.directory.done
    assert job.directory.checkpoint.exists()
    mark.remove()
    assert {path.name for path in job.directory.path.parent.iterdir()} == {job.name}


def test_a_worker_that_comes_to_another_run(job, tmp_path):
    answer = make_worker(str(tmp_path / "absent")).run("0123", plain(job))
    assert answer.event.kind == "failed"
    assert answer.event.reason == f"the worker came to another run, {job.name}: its medic or its images differ"
    assert answer.files == {}


def test_a_worker_that_is_asked_to_stop(job):
    mark = Mark(job.directory.path.parent)
    worker = make_worker(str(mark.path))
    worker.stop()
    answer = worker.run(job.name, plain(job))
    assert answer.event.kind == "lost"
    assert "stopped at iteration 1; the same command resumes it" in answer.event.reason
    assert make_worker(str(mark.path)).run(job.name, plain(job)).event.kind == "done"


def test_packing(job, tmp_path):
    path = tmp_path / "elsewhere"
    for name in ("config.yaml", "done", "part/two", "checkpoint/last.pt", ".lock", "z.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    (path / "config.yaml").write_text(RunConfig(target="street", output=str(tmp_path / "there")).to_yaml())
    files = pack(path)
    assert sorted(files) == ["config.yaml", "done", "part/two", "z.json"]

    class Ordered(dict):
        """Notes what is there when each file is read."""

        def __getitem__(self, name):
            seen[name] = job.directory.done
            return super().__getitem__(name)

    seen: dict[str, bool] = {}
    unpack(Ordered(files), job.directory)
    assert list(seen)[-1] == "done"
    assert not any(seen.values())
    assert (job.directory.path / "part" / "two").read_text() == "part/two"
    assert RunConfig.from_yaml(job.directory.path / "config.yaml").output == str(job.directory.path.parent)
    for name in ("../other", "/etc/other"):
        with pytest.raises(MedicError, match="which is not of a run"):
            unpack({name: b""}, job.directory)


def test_an_output_that_cannot_be_marked(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MedicError, match="file cannot be written"):
        Mark(tmp_path / "file")


def test_room_and_shares():
    small, big, idle = Node(4.0, 1.0), Node(16.0, 8.0), Node(0.0, 0.0)
    assert room([small, big, idle], 1, 0.0) == 20
    assert room([small, big, idle], 3, 0.0) == 6
    assert gpu_share([Node(8.0, 0.0)], 3) == 0.0
    assert (gpu_share([small, big], None), gpu_share([small, big], 9)) == (1.0, 1.0)
    assert room([small, big], 1, 1.0) == 9
    assert room([small, big], 4, 1.0) == 5  # cores run out
    assert gpu_share([small], 3) == 0.3333
    assert room([small], 1, gpu_share([small], 3)) == 3
    assert gpu_share([small, big], 10) == 0.5
