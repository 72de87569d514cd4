"""Runs that fail, and runs whose process is lost."""

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest

from medic.results.runs import ERROR
from medic.sweeps import executors
from medic.sweeps.executors import Executor, Outcome
from medic.sweeps.executors.here import Here
from medic.sweeps.executors.local import Local
from medic.sweeps.overview import Overview
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner

LOSSES = Executor.losses


class Scripted(Here):
    """An executor with given outcomes."""

    def __init__(self, *kinds):
        super().__init__()
        self._kinds = list(kinds)

    def submit(self, job):
        self._job = job

    def wait(self, seconds):
        job, kind = self._job, self._kinds.pop(0)
        if kind == "done":
            job.directory.write_done(1.0)
        return [Outcome(job.name, kind, f"was {kind}")]

    def close(self, stop):
        assert not self._kinds


@pytest.mark.parametrize(("kinds", "retries", "failed"), [
    (["failed", "done"], 1, False),
    (["failed", "failed"], 1, True),
    (["failed"], 0, True),
    (["lost", "done"], 0, False),
    (["lost"] * LOSSES + ["done"], 0, False),
    (["lost"] * (LOSSES + 1), 9, True),
    (["lost", "failed", "lost", "done"], 1, False),
    (["lost", "failed", "lost", "failed"], 1, True),
])  # fmt: skip
def test_losses_are_no_failures_but_end(kinds, retries, failed, mini, tmp_path):
    [job] = Planner().jobs([{"dataset": mini, "target": "street", "output": tmp_path}])
    schedule = Schedule([job], retries)
    schedule.run(Scripted(*kinds), Overview())
    assert (job.name in schedule.failed, job.name in schedule.done) == (failed, not failed)
    error = json.loads((job.directory.path / ERROR).read_text())
    *earlier, last = [f"was {kind}" for kind in kinds if kind != "done"]
    assert (error["reason"], error["attempts"]) == (last, len(earlier) + 1)
    assert [one["reason"] for one in error.get("earlier", [])] == earlier


def test_progress_is_logged(mini, tmp_path, caplog):
    caplog.set_level("INFO", "medic")
    jobs = Planner().jobs([{"dataset": mini, "target": "street", "output": tmp_path}])
    Schedule(jobs, retries=1).run(Scripted("failed", "done"), Overview(every=0.0))
    assert caplog.messages == [
        "0 of 1 done, 1 running, 0 to do, 0 failed",
        "0 of 1 done, 1 running, 0 to do, 0 failed, 1 retried",
        "1 of 1 done, 0 running, 0 to do, 0 failed",
    ]


@pytest.mark.slow
def test_a_process_that_dies_while_it_has_no_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # restored afterwards
    trap = tmp_path / "imported"  # by a module of the working directory, which must not replace Python's
    (tmp_path / "pickle.py").write_text(f"open({str(trap)!r}, 'w')\n")
    jobs = Planner().jobs({**folder, "output": tmp_path, "seed": seed} for seed in (0, 1))
    with Local(tmp_path, "cpu", jobs=1) as local:
        for job in jobs:
            local.submit(job)
            outcomes, until = [], time.monotonic() + 60
            while not outcomes and time.monotonic() < until:
                outcomes = local.wait(1)
            assert outcomes[0][:3] == (job.name, "done", "")
            [process] = multiprocessing.active_children()
            process.kill()
            process.join()
    assert not trap.exists()


@pytest.mark.slow
def test_a_living_process_comes_before_a_new_one(folder, tmp_path, monkeypatch):
    """It would keep its memory beside it."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # restored afterwards
    first, second, third = Planner().jobs({**folder, "output": tmp_path, "seed": seed} for seed in range(3))
    with Local(tmp_path, "cpu", jobs=2) as local:
        local.submit(first)
        local.submit(second)
        outcomes, until = [], time.monotonic() + 60
        while len(outcomes) < 2 and time.monotonic() < until:
            outcomes += local.wait(1)
        before = [worker.process for worker in local._workers]
        before[0].kill()
        before[0].join()
        local.submit(third)
        assert [worker.process for worker in local._workers] == before
        assert [worker.run for worker in local._workers] == [None, third.name]


@pytest.mark.parametrize(("shortages", "kind"), [(3, "lost"), (4, "memory")])
def test_a_process_that_the_system_kills_for_want_of_memory(mini, tmp_path, monkeypatch, shortages, kind):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\n")
    monkeypatch.setattr(executors.local, "_COUNTERS", counters)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # restored afterwards
    [job] = Planner().jobs([{"dataset": mini, "target": "street", "output": tmp_path}])
    with Local(tmp_path, "cpu", jobs=1) as local:
        local.submit(job)
        counters.write_text(f"pgfault 15\noom_kill {shortages}\n")
        multiprocessing.active_children()[0].kill()
        [outcome] = local.wait(60)
    assert (outcome.name, outcome.kind) == (job.name, kind)


class Crowded(Here):
    """An executor whose memory suffices for `most` runs at a time."""

    def __init__(self, most):
        super().__init__()
        self._most, self._jobs, self.counts = most, [], []

    @property
    def slots(self):
        return 4

    def submit(self, job):
        self._jobs.append(job)

    def wait(self, seconds):
        self.counts.append(len(self._jobs))
        job = self._jobs.pop(0)
        if len(self._jobs) >= self._most:
            return [Outcome(job.name, "memory", "out of memory")]
        job.directory.path.mkdir(parents=True, exist_ok=True)
        job.directory.write_done(1.0)
        return [Outcome(job.name, "done")]


class Together(Crowded):
    """The same, where runs that do not fit end at the same moment."""

    def wait(self, seconds):
        if len(self._jobs) <= self._most:
            return super().wait(seconds)
        jobs, self._jobs = self._jobs, []
        return [Outcome(job.name, "memory", "out of memory") for job in jobs]


def test_runs_that_were_not_alone_are_tried_again(mini, tmp_path):
    settings = {"dataset": mini, "target": "street", "output": tmp_path}
    schedule = Schedule(Planner().jobs({**settings, "seed": seed} for seed in range(5)), retries=0)
    schedule.run(Together(1), Overview())
    assert (len(schedule.done), len(schedule.failed)) == (5, 0)


@pytest.mark.parametrize(("most", "failed"), [(2, 0), (1, 0), (0, 5)])
def test_a_sweep_without_memory_continues_with_fewer_at_a_time(mini, tmp_path, caplog, most, failed):
    settings = {"dataset": mini, "target": "street", "output": tmp_path}
    jobs = Planner().jobs({**settings, "seed": seed} for seed in range(5))
    schedule, executor = Schedule(jobs, retries=0), Crowded(most)
    schedule.run(executor, Overview())
    assert (len(schedule.done), len(schedule.failed)) == (5 - failed, failed)
    assert executor.counts[:3] == [4, 3, 2]
    assert sum(count > max(1, most) for count in executor.counts) <= 5
    assert max(executor.counts[-3:]) <= max(1, most)
    assert "out of memory" in caplog.text


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Give worker processes, as they start, a backbone for which memory suffices in so many of them."""

    def suffices(processes):
        for number in range(processes):
            (tmp_path / f"memory-{number}").touch()
        shutil.copy(Path(__file__).with_name("greedy.py"), tmp_path / "sitecustomize.py")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return suffices


@pytest.mark.slow
@pytest.mark.parametrize("fits", [0, 1])
def test_processes_that_do_not_fit_together(folder, tmp_path, memory, caplog, fits):
    """Worker processes run out of memory beside each other; alone they do not, or one line says what to do."""
    memory(fits)
    settings = {**folder, "output": tmp_path / "runs", "track": "none"}
    schedule = Schedule(Planner().jobs({**settings, "seed": seed} for seed in range(3)), retries=0)
    schedule.run(Local(tmp_path / "runs", "cpu", jobs=3), Overview())
    assert (len(schedule.done), len(schedule.failed)) == ((3, 0) if fits else (0, 3))
    said = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert 1 <= len(said) <= 2
    assert "at a time" in said[-1]
    assert all("\n" not in line and "GPU 0" not in line for line in (*said, *schedule.failed.values()))
    for reason in schedule.failed.values():
        assert "tried to allocate 2.00 GiB" in reason
        assert "--batch-size" in reason
