"""Runs that fail, and runs whose process is lost."""

import json
import multiprocessing
import time

import pytest

from medic.sweeps.executors import Executor, Outcome
from medic.sweeps.executors.here import Here
from medic.sweeps.executors.local import Local
from medic.sweeps.overview import Overview
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner
from medic.tables.results import ERROR

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
    found = json.loads((job.directory.path / ERROR).read_text())
    *earlier, last = [f"was {kind}" for kind in kinds if kind != "done"]
    assert (found["reason"], found["attempts"]) == (last, len(earlier) + 1)
    assert [one["reason"] for one in found.get("earlier", [])] == earlier


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
def test_a_process_that_dies_while_it_has_no_run(folder, tmp_path):
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
