"""Sweeps: what they span, what they start, and what becomes of what fails."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from medic.cli import main
from medic.config.draws import SHARED, draw
from medic.data.holdout import seed_hash
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.runs.directory import RunDirectory
from medic.runs.seal import make_seal
from medic.sweeps.executors import Executor, executor_class, executor_names, executor_options
from medic.sweeps.executors.here import Here
from medic.sweeps.files import read_sweep
from medic.sweeps.launch import estimate, needed_device
from medic.sweeps.overview import Overview
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Job, Planner, Sweep, parse_span, titles
from tests.built import plan_of
from tests.messages import naming
from tests.processes import descendants


def written(path, text):
    path.write_text(text)
    return path


class TestWhatIsSpanned:
    def test_all_combinations_over_the_settings(self, tmp_path):
        file = written(
            tmp_path / "s.yaml",
            "dataset: digits\niterations: 7\nspan:\n  target: each\n  algorithm: [erm, medic++]\n  seed: 0..2\n",
        )
        runs = read_sweep(file).runs()
        assert len(runs) == 4 * 2 * 3
        assert {run["iterations"] for run in runs} == {7}
        assert {run["target"] for run in runs} == {"handwritten", "printed", "blended", "street"}
        assert {run["method"] for run in runs} == {"erm", "medic++"}
        assert {run["seed"] for run in runs} == {0, 1, 2}

    def test_variants_are_combined_with_the_span_and_win_over_it(self, tmp_path):
        file = written(
            tmp_path / "s.yaml",
            "target: street\nspan: {seed: [0, 1], steps: [[9]]}\n"
            "variants:\n- {steps: [3, 3, 3]}\n- {sampling: random}\n",
        )
        runs = read_sweep(file).runs()
        assert [(run["steps"], run.get("sampling"), run["seed"]) for run in runs] == [
            ([3, 3, 3], None, 0),
            ([3, 3, 3], None, 1),
            ([9], "random", 0),
            ([9], "random", 1),
        ]

    def test_every_domain_alone_as_the_source(self):
        runs = Sweep({"dataset": "digits"}, {"sources": ["each"]}).runs()
        assert [run["sources"] for run in runs] == [["handwritten"], ["printed"], ["blended"], ["street"]]

    def test_each_is_of_the_dataset_of_its_run(self):
        runs = Sweep({}, {"target": ["each"], "dataset": ["digits", "pacs"]}).runs()
        assert [(run["dataset"], run["target"]) for run in runs] == [
            *(("digits", domain) for domain in ("handwritten", "printed", "blended", "street")),
            *(("pacs", domain) for domain in ("art_painting", "cartoon", "photo", "sketch")),
        ]

    def test_what_is_left_empty_has_its_default(self, tmp_path):
        file = written(tmp_path / "s.yaml", "seed:\nspan: {lr: [null, 0.1]}\nvariants:\n- {iterations: }\n")
        assert read_sweep(file).runs() == [{}, {"lr": 0.1}]

    def test_the_output_of_a_file(self, tmp_path):
        sweep = read_sweep(written(tmp_path / "s.yaml", "output: there\n"))
        assert sweep.output == Path("there")
        assert sweep.changed({"output": "here"}, {}).output == Path("here")
        assert Sweep({}).output == Path("runs")

    def test_flags(self):
        span = parse_span(["method=erm,medic++", "steps=3,3,3|9", "seed=0..1"])
        assert span == {"method": ["erm", "medic++"], "steps": ["3,3,3", 9], "seed": ["0..1"]}
        changed = Sweep({"seed": 5}, {"lr": [0.1]}).changed({"lr": 0.2}, {"seed": [1]})
        assert changed.runs() == [{"lr": 0.2, "seed": 1}]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("dataset: digits\nspam: 1\n", "unknown setting 'spam' in sweep {path}: "),
            ("span:\n  target: each\n  metod: [erm]\n", "'metod' in span of sweep {path}: did you mean 'method'?"),
            ("variants: erm\n", "sweep {path}: variants must be a list"),
            ("- a\n", "must contain settings"),
            ("a: [\n", "sweep {path}, line 2: "),
            ("target: street\nspan:\n  method:\n  - erm\n  - medik\n", "{path}: unknown method 'medik': did you mean"),
            ("target: street\nlr: -1\n", "sweep {path}: lr must be"),
            (
                "target: street\niterations: 0\nspan:\n  seed: [0, 1]\n",
                "sweep {path}: iterations must be a whole number of at least 1, got 0",
            ),
            ("target: street\niterations: many\n", "sweep {path}: iterations must be a whole number, got 'many'"),
            ("target: street\niterations: [1, 2]\n", "sweep {path}: iterations must be a whole number, got [1, 2]"),
            ("target: street\nseed: 0..2\n", "{path}: seed '0..2' is a range: list several values"),
            ("output: [a, b]\n", "{path}: output must be a valid string, got ['a', 'b']"),
            ("target: street\nspan:\n  seed: 0...2\n", "sweep {path}: seed must be a whole number, got '0...2'"),
            ("target: street\nspan:\n  seed: [0-2]\n", "sweep {path}: seed must be a whole number, got '0-2'"),
            ("target: street\nspan: a: b\n", "sweep {path}, line 2: mapping values are not allowed here"),
            ("target: street\nspan:\n  seed: 0..x\n", "sweep {path}: seed must be a whole number, got '0..x'"),
            ("target: street\nspan:\n  seed: 3..1\n", "{path}: seed '3..1' is a descending range: write 1..3"),
            ("target: street\nspan:\n  seed: yes\n", "sweep {path}: seed must be a whole number, got True"),
            ("target: street\nspan:\n  seed:\n", "sweep {path}: seed has no values"),
            ("target: street\nspan:\n  seed: []\n", "sweep {path}: seed has no values"),
            ("target: street\nspan:\n  yes: 1\n", "unknown setting 'True' in span of sweep {path}"),
            ("target: street\nlr: 1\nlearning_rate: 2\n", "line 3: duplicate key lr"),
            ("target: street\nhparams: {a: 1,\n  a: 2}\n", "line 3: duplicate key a"),
            ("target: street\nseed: 1\nspan:\n  seed: [2]\n", "sweep {path}: seed is set both in the span and outside"),
            ("target: street\nspan: {output: [a, b]}\n", "sweep {path}: all runs share one output: set it once"),
            ("target: !!python/name:os.system\n", "line 1: could not determine a constructor"),
            ("span:\n  target: each\n  dataset: [digits,\n    digitz]\n", "sweep {path}: unknown dataset 'digitz'"),
            ("span:\n  dataset: folder\n  target: each\n", "sweep {path}: dataset 'folder' requires --root"),
            ("variants:\n- {target: street}\n- {target: stret}\n", "sweep {path}: unknown domain 'stret'"),
        ],
    )  # fmt: skip
    def test_mistakes_are_named_with_their_file(self, tmp_path, capsys, text, message):
        file = written(tmp_path / "s.yaml", text)
        assert main(["sweep", str(file), "--output", str(tmp_path / "out"), "--dry-run"]) == 2
        said = capsys.readouterr().err
        assert message.replace("{path}", str(file)) in said
        assert said.count("\n") == 1

    @pytest.mark.parametrize("part", ["seed", "seed=", "seed=0,", "sed=1", "output=a,b"])
    def test_mistakes_in_flags(self, part):
        with pytest.raises(MedicError, match=r"span|setting"):
            parse_span([part])


def test_two_sweeps_name_the_same_run_alike(mini):
    one = Sweep({"dataset": mini, "target": "street"}, {"seed": [0, 1], "method": ["erm"]})
    other = Sweep({"dataset": mini, "method": "erm", "seed": 1}, {"target": ["street", "printed"]})
    names = [{job.name for job in sweep.jobs(Planner())} for sweep in (one, other)]
    assert len(names[0] & names[1]) == 1


def test_every_network_of_a_sweep_is_checked_first(mini):
    """The second one has fewer blocks, but is otherwise the network of the first one."""
    sweep = Sweep({"dataset": mini, "target": "street", "method": "erm"}, {"tune": ["last:1", "last:99"]})
    with pytest.raises(MedicError, match=naming("'last:99' blocks")):
        sweep.jobs(Planner())


def swept(tmp_path, folder, *options, **settings):
    """Start a sweep of runs of a second in this process; gives the exit code."""
    file = written(tmp_path / "sweep.yaml", json.dumps({**folder, "track": "none", **settings}))
    return main(["sweep", str(file), "--output", str(tmp_path / "out"), "--executor", "here", *options])


def test_a_failing_run_among_good_ones(folder, tmp_path, capsys):
    assert swept(tmp_path, folder, iterations=8, span={"lr": [0.01, 1e30]}) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs are finished in" in said.out
    assert "failed: erm → z, seed 0, lr 1e+30: " in said.err
    runs = find_runs([tmp_path / "out"])
    assert len(runs.finished) == 1
    (path,) = (run.path for run in runs.failed)
    kept = json.loads((path / "error.json").read_text())
    assert kept["attempts"] == 2
    assert re.search(naming("--lr 1e+30"), kept["reason"])
    assert main(["table", str(tmp_path / "out")]) == 0
    assert f"failed: {kept['reason']}" in capsys.readouterr().err


def test_a_full_disk_ends_a_sweep(folder, tmp_path, capsys, monkeypatch):
    def full(path, state):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("medic.runs.directory.save_checkpoint", full)
    assert swept(tmp_path, folder, span={"seed": [0, 1]}) == 2
    (path,) = (tmp_path / "out").iterdir()
    assert re.search(f"(?i)disk full.*{path}", capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize("executor", ["here", "local"])
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/x"])
def test_an_output_that_cannot_be_written(folder, tmp_path, capsys, executor, place):
    (tmp_path / "file").touch()
    output = tmp_path / place
    assert swept(tmp_path, folder, "--output", str(output), "--executor", executor, "--quiet") == 2
    assert capsys.readouterr().err.startswith(f"medic: error: output {output} cannot be written:")


def test_a_log_that_cannot_be_written(folder, tmp_path, capsys):
    (tmp_path / "out" / "logs" / "worker-0.log").mkdir(parents=True)
    assert swept(tmp_path, folder, "--executor", "local", "--quiet") == 2
    assert capsys.readouterr().err.startswith(f"medic: error: output {tmp_path}/out/logs cannot be written:")


def test_titles_say_what_runs_differ_in(mini):
    def made(settings, span):
        return list(titles(Sweep({"dataset": mini, **settings}, span).jobs(Planner())).values())

    assert made({"method": "erm", "target": "street"}, {"lr": [0.1, 0.2], "steps": [None]}) == [
        "erm → street, seed 0, lr 0.1",
        "erm → street, seed 0, lr 0.2",
    ]
    assert made({"method": "erm"}, {"sources": [["printed"], ["street", "printed"]]}) == [
        "erm from printed, seed 0",
        "erm from printed, street, seed 0",
    ]
    several = {"sources": [["printed", "street"], ["printed", "blended"]], "target": [["handwritten"]]}
    assert made({"method": "erm"}, several)[0] == "erm → handwritten, seed 0, sources printed,street"


def test_the_terminal_is_left_as_it_was(folder, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class Interrupted(Here):
        def wait(self, seconds):
            os.kill(os.getpid(), signal.SIGTERM)
            return []

        def close(self, stop):
            assert stop
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        Schedule(Planner().jobs([{**folder, "output": tmp_path}])).run(Interrupted(), Overview())
    assert "0 of 1 done, 1 running" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().count("\x1b[?25l") == sys.stderr.getvalue().count("\x1b[?25h") == 1


def test_paths_are_absolute_in_other_processes(folder, tmp_path, monkeypatch):
    """But weights may also be a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").touch()
    for weights, expected in (("w", str(tmp_path / "w")), ("imagenet-v1", "imagenet-v1")):
        job = Job({**folder, "weights": weights, "output": "out"}, {}, RunDirectory(tmp_path))
        assert (job.portable()["weights"], job.portable()["output"]) == (expected, str(tmp_path / "out"))


@pytest.mark.parametrize("name", executor_names())
def test_every_module_is_an_executor_with_help_for_its_options(name):
    assert issubclass(executor_class(name), Executor)
    assert all(arguments["help"] for arguments in executor_options(name).values())


@contextmanager
def one_thread():
    """As workers have, so that sums are those of theirs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


ASKED = {"iterations": 8, "evaluate_every": 4, "track": "none", "span": {"seed": "0..3"}}
LONG = {**ASKED, "iterations": 40, "evaluate_every": 20}


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """The output of a sweep of four runs that nothing happened to."""
    place = tmp_path_factory.mktemp("undisturbed")
    with one_thread():
        assert swept(place, folder, "--quiet", **ASKED) == 0
    return place / "out"


@pytest.fixture(scope="module")
def undisturbed_for_long(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("long")
    with one_thread():
        assert swept(place, folder, "--quiet", **LONG) == 0
    return place / "out"


@pytest.fixture
def copied(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "out")
    return tmp_path / "out"


def test_a_sweep_starts_what_is_missing(folder, copied, tmp_path, capsys):
    times = {path: path.stat().st_mtime_ns for path in copied.glob("*/results.jsonl")}
    wider = {**ASKED, "span": {"seed": "0..4"}}
    assert swept(tmp_path, folder, "--dry-run", **wider) == 0
    assert "5 runs: 4 finished, 1 to do" in capsys.readouterr().out
    assert swept(tmp_path, folder, **wider) == 0
    assert f"5 of 5 runs are finished in {copied}: 4 before this command, 1 trained now (" in capsys.readouterr().out
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert len(find_runs([copied]).finished) == 5


def test_a_damaged_run_is_named(folder, copied, tmp_path, capsys):
    path = min(copied.glob("*/results.jsonl"))
    path.write_bytes(path.read_bytes()[:500])
    for options in ([], ["--dry-run"]):
        assert swept(tmp_path, folder, *options, **ASKED) == 1
        said = capsys.readouterr()
        assert f"damaged: {path.parent}: " in said.err
        assert ("4 runs: 3 finished, 0 to do, 1 damaged" if options else "3 of 4 runs are finished in") in said.out


def test_how_long_a_sweep_takes(folder, copied, tmp_path, capsys):
    """By all runs of the directory, spanned or not, and so many at a time; what is not an iteration does not grow."""
    for number, path in enumerate(sorted(copied.glob("*/done"))):
        results = path.with_name("results.jsonl")
        results.write_text(re.sub(r'"step_time": [^,]+', '"step_time": 2.5', results.read_text()))
        path.write_text(make_seal(path.parent, 40.0 * (number + 1)))  # 100 on average, 20 of them in 8 iterations
    more = {**ASKED, "iterations": 16, "span": {"seed": [7, 8, 9]}}
    for jobs, said in (("1", "one run at a time: 6 min 0 s\n"), ("2", "2 runs at a time: 3 min 0 s\n")):
        assert swept(tmp_path, folder, "--dry-run", "--executor", "local", "--jobs", jobs, **more) == 0
        assert said in capsys.readouterr().out
    jobs = Sweep({**folder, "iterations": 16}).jobs(Planner())
    results = find_runs([copied]).finished
    assert estimate(jobs, results) == (120, True)
    assert estimate(Sweep({**folder, "iterations": 16, "method": "mldg"}).jobs(Planner()), results) == (120, False)
    assert estimate(jobs, ()) is None
    other = Sweep({**folder, "iterations": 16, "backbone": "resnet18"}).jobs(Planner())
    assert estimate(other, results) is None  # runs with another backbone say nothing
    assert estimate([*jobs, *other], results) is None


def test_a_dry_run_writes_nothing(folder, undisturbed, tmp_path, capsys, monkeypatch):
    """It comes to the same runs as whoever decoded the images."""
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    assert swept(tmp_path, folder, "--dry-run", **ASKED) == 0
    said = capsys.readouterr().out.split()
    assert all(path.parent.name in said for path in undisturbed.glob("*/done"))
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_room_is_for_the_devices_that_runs_ask_for(folder):
    own, other = (Sweep({**folder, "device": device}).jobs(Planner()) for device in ("cpu", "auto"))
    assert (needed_device(own), needed_device(other), needed_device([*own, *other])) == ("cpu", "auto", "auto")


def test_a_dry_run_names_the_runs_in_progress(folder, copied, tmp_path, capsys):
    (path, *_) = copied.glob("*/done")
    path.unlink()
    for held, state, ending in ((True, "running ", " (1 of them running elsewhere)"), (False, "started ", "")):
        with RunDirectory(path.parent).locked() if held else nullcontext():
            assert swept(tmp_path, folder, "--dry-run", **ASKED) == 0
        said = capsys.readouterr().out
        assert f"{path.parent.name}  {state}  erm" in said
        assert f"4 runs: 3 finished, 1 to do{ending}\n" in said


def metrics(folder):
    return {result.path.name: result.records[-1]["target"] for result in find_runs([folder]).finished}


CORES = sorted(os.sched_getaffinity(0))


def started(tmp_path, folder, cores):
    """A sweep in a process of its own, with a worker of one thread on each of some cores."""
    file = written(tmp_path / "sweep.yaml", json.dumps({**folder, **LONG}))
    command = [sys.executable, "-m", "medic", "sweep", str(file), "--output", str(tmp_path / "out")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def wait_for(pattern, folder, *processes):
    while not list(folder.glob(pattern)):
        time.sleep(0.02)
        assert all(process.poll() is None for process in processes)


def workers_of(pid):
    """Return the processes of a sweep that execute runs; multiprocessing has one more, its resource tracker."""
    return descendants(pid, "spawn_main")


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_work_and_a_worker_that_dies_is_replaced(folder, undisturbed_for_long, tmp_path):
    both = [started(tmp_path, folder, [core]) for core in (CORES[0], CORES[-1])]
    wait_for("out/*/config.json", tmp_path, *both)  # until a run is under way
    workers = [worker for process in both for worker in workers_of(process.pid)]  # the other sweep may still start
    workers[0].kill()
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("4 of 4 runs are finished in" in text for text in said)
    assert metrics(tmp_path / "out") == metrics(undisturbed_for_long)
    for result in find_runs([tmp_path / "out"]).finished:
        assert result.environment["command"][1:] == [*both[0].args[3:]]


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_killed_ends_with_the_same_results(folder, undisturbed_for_long, tmp_path):
    process = started(tmp_path, folder, CORES[:2])
    wait_for("out/*/checkpoint/last.pt", tmp_path, process)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert re.search(r"stopped with [1-4] runs? left", process.communicate()[1])
    assert process.returncode == 130
    assert workers
    assert not any(worker.is_running() for worker in workers)
    process = started(tmp_path, folder, CORES[:2])
    wait_for("out/*/done", tmp_path, process)
    process.kill()
    process.communicate()
    with one_thread():
        assert swept(tmp_path, folder, "--quiet", **LONG) == 0
    assert metrics(tmp_path / "out") == metrics(undisturbed_for_long)
    assert not find_runs([tmp_path / "out"]).unfinished


def test_the_draws_of_domainbed():
    """Its own numbers for the first draw of the first trial, of large images."""
    assert draw(SHARED["large"]["lr"], 1, 0) == pytest.approx(2.702893e-05, rel=1e-6)
    assert draw(SHARED["large"]["batch_size"], 1, 0) == 39


@pytest.mark.parametrize(("method", "least"), [("vrex", 3), ("hgp", 4), ("hutchinson", 4)])
def test_the_batch_is_drawn_from_where_the_sources_do(mini, method, least):
    seed = seed_hash(seed_hash(1, 0), "batch_size")
    expected = int(2 ** np.random.RandomState(seed).uniform(least, 9))  # small images
    settings = {"dataset": mini, "target": "street", "method": method, "optimizer": "adam", "hparams_seed": 1}
    assert plan_of(**settings).batch_size == expected


def test_draws_are_of_adam(mini):
    sweep = Sweep({"dataset": mini, "target": "street", "method": "erm"}, {"hparams_seed": ["0..3"]})
    with pytest.raises(MedicError, match=naming("hparams_seed --optimizer adam")):
        sweep.jobs(Planner())
    assert len(sweep.changed({"optimizer": "adam"}, {}).jobs(Planner())) == 4
