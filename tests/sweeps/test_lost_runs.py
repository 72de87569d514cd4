"""What a schedule does with runs that fail, and with those whose worker is lost."""

import json
import time

import pytest

from medic.runs.interrupts import Interrupts
from medic.sweeps.executors import Event
from medic.sweeps.executors.here import Here
from medic.sweeps.executors.local import Local
from medic.sweeps.overview import Lines, Silent
from medic.sweeps.schedule import LOSSES, Schedule
from medic.sweeps.sweep import Planner, Sweep
from medic.tables.results import ERROR


class Scripted:
    """An executor whose runs end as it was told, one after the other."""

    slots = 1

    def __init__(self, *kinds):
        self._kinds = list(kinds)
        self._job = None

    def submit(self, job):
        self._job = job

    def wait(self, seconds):
        job, kind = self._job, self._kinds.pop(0)
        if kind == "done":
            job.directory.write_done(1.0)
        return [Event(job.name, kind, f"was {kind}")]

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
    [job] = Planner().jobs(Sweep({"dataset": mini, "target": "street"}).configs(tmp_path))
    schedule = Schedule([job], retries)
    schedule.run(Scripted(*kinds), Silent(), Interrupts())
    assert (job.name in schedule.failed, job.name in schedule.done) == (failed, not failed)
    found = json.loads((job.directory.path / ERROR).read_text())
    *earlier, last = [f"was {kind}" for kind in kinds if kind != "done"]
    assert (found["reason"], found["attempts"]) == (last, len(earlier) + 1)
    assert [one["reason"] for one in found.get("earlier", [])] == earlier


def test_what_is_tried_again_is_said(mini, tmp_path, capsys):
    [job] = Planner().jobs(Sweep({"dataset": mini, "target": "street"}).configs(tmp_path))
    Schedule([job], retries=1).run(Scripted("failed", "done"), Lines(every=0.0), Interrupts())
    assert capsys.readouterr().err.splitlines() == [
        "0 of 1 done, 1 running, 0 to do, 0 failed",
        "0 of 1 done, 1 running, 0 to do, 0 failed, 1 tried again",
        "1 of 1 done, 0 running, 0 to do, 0 failed",
    ]


def test_a_process_that_dies_while_it_has_no_run(folder, tmp_path):
    [job] = Planner().jobs(Sweep(folder).configs(tmp_path))
    local = Local(1, "cpu", tmp_path / "logs")
    try:
        [dead] = local._workers
        dead.process.kill()
        dead.process.wait()
        local.submit(job)
        events, until = [], time.monotonic() + 60
        while not any(event.kind == "done" for event in events) and time.monotonic() < until:
            events += local.wait(1)
        assert [event.kind for event in events] == ["started", "done"]
    finally:
        local.close(stop=True)


def test_waiting_for_another_process_takes_its_time():
    """Not the processor's: the run of another process is looked at again after a while."""
    began = time.perf_counter(), time.process_time()
    assert Here().wait(0.2) == []
    assert time.perf_counter() - began[0] >= 0.2
    assert time.process_time() - began[1] < 0.1
