"""Sweeps on Ray: the same runs as on this machine, even if workers are lost."""

import importlib.util
import json
import os
import signal
import socket
import sys
import time

import pytest
import torch

import medic
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.runs.interrupts import Stopped
from medic.runs.layout import RECORDS
from medic.sweeps.executors import make_executor
from medic.sweeps.executors import ray as executor
from medic.sweeps.executors.ray import Ray, collect, connect, share, store
from medic.sweeps.launch import launch
from medic.sweeps.overview import Overview
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner
from medic.training import load_checkpoint
from tests.processes import descendants
from tests.results.written import seal

TIMES = ("step_time", "mem_gb")


def jobs(settings, output, seeds=(0,)):
    return Planner().jobs({**settings, "output": output, "seed": seed} for seed in seeds)


def measured(output):
    """Return what a table is made of, by run."""
    runs = find_runs([output])
    assert (runs.unfinished, runs.failed, runs.damaged) == ((), (), ())
    return {
        result.path.name: [
            {key: value for key, value in record.items() if key not in TIMES} for record in result.records
        ]
        for result in runs.finished
    }


class Then(Overview):
    """Acts once, as soon as a run in progress has a file: by default, a checkpoint."""

    def __init__(self, action, file=None):
        super().__init__()
        self._action, self._file, self.acted = action, file, False

    def show(self, schedule, slots):
        for name in schedule.running:
            directory = schedule.by_name[name].directory
            file = directory.path / self._file if self._file else directory.checkpoint
            if not self.acted and file.exists() and file.stat().st_size:
                self.acted = True
                self._action()


@pytest.fixture(scope="module")
def running(folder):
    """Start a Ray of two cores as a sweep does, and return its address."""
    assert connect(None, None, 2)
    import ray

    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.mark.usefixtures("running")
# Not `importorskip`: a Ray that listens on this machine alone must not have been imported before.
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
class TestCluster:
    @pytest.mark.nightly
    def test_a_killed_worker_changes_nothing(self, folder, tmp_path):
        """Three runs on two cores; one process is killed during its run: the same table as on this machine."""
        settings = {**folder, "iterations": 60, "checkpoint_every": 1}
        launch(jobs(settings, tmp_path / "local", range(3)), make_executor("local", 2), quiet=True)

        wanted = jobs(settings, tmp_path / "ray", range(3))
        schedule, workers, killed = Schedule(wanted, retries=0), Ray(tmp_path / "ray", "cpu"), []

        def kill():
            killed.append(descendants(os.getpid(), "ray::_run")[0])
            killed[0].kill()

        schedule.run(workers, Then(kill))
        assert workers.slots == 2
        assert len(killed) == 1
        assert (schedule.failed, len(schedule.done)) == ({}, 3)
        assert measured(tmp_path / "ray") == measured(tmp_path / "local")
        environment = json.loads((wanted[0].directory.path / "environment.json").read_text())
        assert environment["command"][1:] == sys.argv[1:]

    @pytest.mark.slow
    def test_runs_in_progress_save_a_checkpoint_when_the_sweep_is_stopped(self, folder, tmp_path):
        [job] = jobs({**folder, "iterations": 10**6, "evaluate_every": 50}, tmp_path)
        stopped = []

        def stop():
            stopped.append(time.time())
            os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Stopped, match="stopped with 1 run left"):
            Schedule([job]).run(Ray(tmp_path, "cpu", 1), Then(stop, file=RECORDS))
        assert not job.directory.done
        assert load_checkpoint(job.directory.checkpoint)["trainer"]["iteration"] >= 50
        assert job.directory.checkpoint.stat().st_mtime > stopped[0]
        with job.directory.locked():  # no process executes it any more
            pass

    @pytest.mark.slow
    def test_a_run_that_always_kills_its_worker(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr(executor.Executor, "losses", 1)
        monkeypatch.setattr(executor, "_run", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        schedule = Schedule(jobs(folder, tmp_path))
        schedule.run(Ray(tmp_path, "cpu"), Overview())
        [reason] = schedule.failed.values()
        assert "Ray lost its worker" in reason

    @pytest.mark.slow
    def test_workers_that_lack_medic(self, folder, tmp_path, monkeypatch):
        def broken(*_):
            raise ModuleNotFoundError("No module named 'medic'")

        monkeypatch.setattr(executor, "_run", broken)
        schedule = Schedule(jobs(folder, tmp_path), retries=0)
        schedule.run(Ray(tmp_path, "cpu"), Overview())
        [reason] = schedule.failed.values()
        assert reason == "ModuleNotFoundError: No module named 'medic'; every machine must have the same medic"

    @pytest.mark.slow
    def test_a_cluster_without_room(self, tmp_path):
        with pytest.raises(MedicError, match="--cpus-per-run 64 is too large"):
            Ray(tmp_path, "cpu", cpus_per_run=64).__enter__()

    @pytest.mark.slow
    def test_a_started_ray_listens_on_this_machine_alone(self, running):
        host, port = running.split(":")
        assert host == "127.0.0.1"
        others = {address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {host}
        for other in others:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((other, int(port)), 1)
        with pytest.raises(MedicError, match="already connected to Ray"):
            connect(running, None, 1)


def refused() -> str:
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_that_does_not_answer():
    address = refused()
    with pytest.raises(MedicError, match=f"cannot reach Ray at --address {address}"):
        connect(address, None, 1)
    for wrong in ("auto", "127.0.0.1", "host:", ":6379", "ray://host"):
        with pytest.raises(MedicError, match=f"--address must be HOST:PORT, .* got {wrong}"):
            connect(wrong, None, 1)


def test_a_host_of_another_machine():
    for host in ("192.0.2.77", "no.such.host.invalid"):
        with pytest.raises(MedicError, match=f"--host {host} is not an address of this machine"):
            connect(None, host, 1)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MedicError, match=r"pip install 'medic-osdg\[ray\]'"):
        connect(None, None, 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rai", {}, "unknown executor 'rai'"),
        ("local", {"address": "h:1"}, "--address requires --executor ray"),
        ("ray", {"slurm": ["time=1"]}, "--slurm requires --executor slurm"),
        ("ray", {"address": "h:1", "host": "h"}, "--address joins a cluster and --host starts one"),
        ("ray", {"cpus_per_run": 0}, "--cpus-per-run must be a whole number of at least 1, got 0"),
        ("local", {"jobs": 0}, "--jobs must be a whole number of at least 1, got 0"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(MedicError, match=message):
        make_executor(name, **options)


SHORT = {"target": "street", "iterations": 2, "batch_size": 2, "device": "cpu"}


@pytest.fixture
def job(mini, tmp_path):
    threads, command = torch.get_num_threads(), sys.argv[:]
    yield jobs({"dataset": mini, "method": "erm", **SHORT}, tmp_path / "runs")[0]
    torch.set_num_threads(threads)  # a task sets its own
    sys.argv[:] = command


def test_a_task_that_does_not_see_the_output_returns_the_run(job):
    """All of it but the checkpoint."""
    outcome, files = executor._run(job.name, job.portable(), 1, sys.argv)
    assert (outcome.kind, outcome.reason) == ("done", "")
    assert not job.directory.path.exists()
    store(files, job.directory)
    run = medic.Run(job.directory.path)
    assert run.settings["output"] == str(job.directory.path.parent)
    assert run.metrics["acc"] == run.record["target"]["acc"]
    assert not job.directory.checkpoint.exists()
    assert run.model is not None


def test_a_task_that_sees_the_output_writes_there(job):
    job.directory.path.mkdir(parents=True)
    outcome, files = executor._run(job.name, job.portable(), 1, sys.argv)
    assert (outcome.kind, files) == ("done", {})
    assert job.directory.done
    assert job.directory.checkpoint.exists()


def test_a_task_that_trains_another_run(job):
    outcome, files = executor._run("0123", job.portable(), 1, sys.argv)
    assert (outcome.kind, files) == ("failed", {})
    assert f"trained run {job.name} instead of 0123" in outcome.reason


def test_a_stopped_task_is_tried_again(job, monkeypatch):
    def stopped(*_):
        raise Stopped("stopped at iteration 1", signal.SIGTERM)

    monkeypatch.setattr("medic.sweeps.worker.execute", stopped)
    assert executor._run(job.name, job.portable(), 1, sys.argv)[0].kind == "busy"


def test_files_are_stored_with_done_last(job, tmp_path):
    path = tmp_path / "elsewhere" / "run"
    for name in ("done", "config.json", "settings.json", "part/two", "checkpoint/last.pt", ".lock", "z.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"output: {path.parent}")
    seal(path)
    files = collect(path, "/there")
    assert sorted(files) == ["config.json", "done", "part/two", "settings.json", "z.json"]
    assert files["config.json"] == b"output: /there"

    class Ordered(dict):
        """Notes whether the run is done when each file is read."""

        def __getitem__(self, name):
            seen[name] = job.directory.done
            return super().__getitem__(name)

    seen: dict[str, bool] = {}
    store(Ordered(files), job.directory)
    assert list(seen)[-1] == "done"
    assert not any(seen.values())
    assert (job.directory.path / "part" / "two").read_bytes() == files["part/two"]


def test_shares_of_gpus():
    assert [share(9, 9), share(1, 3), share(9, 10), share(0, 4)] == [1.0, 0.3333, 0.5, 0.0]
