"""Sweeps: what they span, what they start, and what becomes of what fails."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from medic.cli import main
from medic.data.holdout import seed_hash
from medic.errors import MedicError
from medic.experiments.config import RunConfig
from medic.experiments.draws import draw
from medic.experiments.resolve import resolve
from medic.experiments.results import collect
from medic.experiments.sweeps import Planner, Sweep, parse_span
from medic.methods import SHARED

SHORT = ["--iterations", "2", "--batch-size", "2", "--device", "cpu", "--track", "none"]


def written(path, text):
    path.write_text(text)
    return path


class TestWhatIsSpanned:
    def test_all_combinations_over_the_settings(self, tmp_path):
        file = written(
            tmp_path / "s.yaml",
            "dataset: digits\niterations: 7\nspan:\n  target: each\n  algorithm: [erm, medic++]\n  seed: 0..2\n",
        )
        configs = Sweep.read(file).configs(tmp_path / "out")
        assert len(configs) == 4 * 2 * 3
        assert {config.iterations for config in configs} == {7}
        assert {config.target for config in configs} == {"handwritten", "printed", "blended", "street"}
        assert {config.method for config in configs} == {"erm", "medic++"}
        assert {config.seed for config in configs} == {0, 1, 2}

    def test_variants_are_combined_with_the_span_and_win_over_it(self, tmp_path):
        file = written(
            tmp_path / "s.yaml",
            "target: street\nspan: {seed: [0, 1], steps: [[9]]}\n"
            "variants:\n- {steps: [3, 3, 3]}\n- {sampling: random}\n",
        )
        configs = Sweep.read(file).configs(tmp_path)
        assert [(c.steps, c.sampling, c.seed) for c in configs] == [
            ([3, 3, 3], None, 0),
            ([3, 3, 3], None, 1),
            ([9], "random", 0),
            ([9], "random", 1),
        ]

    def test_every_domain_alone_as_the_source(self, tmp_path):
        configs = Sweep({"dataset": "digits"}, {"sources": ["each"]}).configs(tmp_path)
        assert [config.sources for config in configs] == [["handwritten"], ["printed"], ["blended"], ["street"]]

    def test_flags(self, tmp_path):
        span = parse_span(["method=erm,medic++", "steps=3,3,3|9", "seed=0..1"])
        assert span == {"method": ["erm", "medic++"], "steps": ["3,3,3", 9], "seed": ["0..1"]}
        changed = Sweep({"seed": 5}, {"lr": [0.1]}).changed({"lr": 0.2}, {"seed": [1]})
        (config,) = changed.configs(tmp_path)
        assert (config.lr, config.seed) == (0.2, 1)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("dataset: digits\nspam: 1\n", "line 2: 'spam'"),
            ("span:\n  target: each\n  metod: [erm]\n", "line 3: 'metod', did you mean 'method'?"),
            ("variants: erm\n", "line 1: variants are a list"),
            ("- a\n", "does not hold settings"),
            ("a: [\n", "cannot be read"),
            ("target: street\nspan:\n  method:\n  - erm\n  - medik\n", "line 5: unknown method 'medik', did you mean"),
            ("target: street\nlr: -1\n", "line 2: lr is -1"),
        ],
    )  # fmt: skip
    def test_mistakes_are_named_with_their_line(self, tmp_path, capsys, text, message):
        file = written(tmp_path / "s.yaml", text)
        assert main(["sweep", str(file), "--output", str(tmp_path / "out"), "--dry-run"]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("part", ["seed", "seed=", "sed=1"])
    def test_mistakes_in_flags(self, part):
        with pytest.raises(MedicError, match=r"span|setting"):
            parse_span([part])


def test_two_sweeps_name_the_same_run_alike(mini, tmp_path):
    one = Sweep({"dataset": mini, "target": "street"}, {"seed": [0, 1], "method": ["erm"]})
    other = Sweep({"dataset": mini, "method": "erm", "seed": 1}, {"target": ["street", "printed"]})
    planner = Planner()
    names = [{job.name for job in planner.jobs(sweep.configs(tmp_path))} for sweep in (one, other)]
    assert len(names[0] & names[1]) == 1


def test_a_sweep_starts_what_is_missing(mini, tmp_path, capsys):
    arguments = ["sweep", "--dataset", mini, "--target", "street", "--output", str(tmp_path), "--executor", "here"]
    arguments += SHORT
    assert main([*arguments, "--span", "method=erm"]) == 0
    (first,) = collect([tmp_path]).results
    before = (first.path / "results.jsonl").stat().st_mtime_ns
    capsys.readouterr()
    assert main([*arguments, "--span", "method=erm,medic++", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs, 1 of them there, 1 to do" in shown
    assert "unknown" not in shown  # a run was measured
    assert main([*arguments, "--span", "method=erm,medic++"]) == 0
    assert len(collect([tmp_path]).results) == 2
    assert (first.path / "results.jsonl").stat().st_mtime_ns == before


def test_a_failing_run_among_good_ones(mini, tmp_path, capsys):
    arguments = ["sweep", "--dataset", mini, "--target", "street", "--output", str(tmp_path), "--executor", "here"]
    arguments += [*SHORT, "--method", "erm", "--iterations", "20"]
    assert main([*arguments, "--span", "lr=0.01,1e30,0.02"]) == 1
    said = capsys.readouterr()
    assert "2 of 3 runs are in" in said.out
    assert "failed: erm → street, seed 0: the loss became" in said.err
    found = collect([tmp_path])
    assert len(found.results) == 2
    (path,) = found.failed
    kept = json.loads((path / "error.json").read_text())
    assert kept["attempts"] == 2
    assert "the loss became" in kept["reason"]
    assert main(["table", str(tmp_path)]) == 0
    assert "failed: the loss became" in capsys.readouterr().err


def sweep_command(output, *more):
    spans = ["--span", "method=erm,medic++", "seed=0..1"]
    command = [sys.executable, "-m", "medic", "sweep", "--dataset", "digits", "--target", "street", "--output"]
    return [*command, str(output), *SHORT, "--jobs", "2", *spans, *more]


def metrics(folder):
    return {result.path.name: result.records[-1]["target"] for result in collect([folder]).results}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(sweep_command(output), capture_output=True, text=True, check=True)
    assert "4 of 4 runs are in" in done.stdout
    return metrics(output)


def workers_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def test_a_worker_that_dies_is_replaced(undisturbed, tmp_path):
    process = subprocess.Popen(sweep_command(tmp_path), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*/config.yaml")):  # until a run is under way
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    process.communicate()
    assert process.returncode == 0
    assert metrics(tmp_path) == undisturbed


def test_a_sweep_killed_at_any_moment_ends_with_the_same_results(undisturbed, tmp_path):
    for seconds, number in ((3.0, signal.SIGTERM), (5.0, signal.SIGKILL)):
        process = subprocess.Popen(sweep_command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        process.send_signal(number)
        process.communicate()
    subprocess.run(sweep_command(tmp_path), capture_output=True, check=True)
    assert metrics(tmp_path) == undisturbed
    assert not collect([tmp_path]).unfinished


def test_two_sweeps_at_once_share_the_work(undisturbed, tmp_path):
    both = [subprocess.Popen(sweep_command(tmp_path), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("4 of 4 runs are in" in text for text in said)
    assert metrics(tmp_path) == undisturbed


def test_a_sweep_that_is_stopped_says_how_to_go_on(tmp_path):
    process = subprocess.Popen(sweep_command(tmp_path, "--iterations", "5000"), stderr=subprocess.PIPE, text=True)
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stderr))
    reader.start()
    while not list(tmp_path.glob("*/checkpoint/last.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait()
    reader.join()
    assert process.returncode == 130
    assert "stopped with 4 runs left; the same command goes on" in said[-1]
    assert not workers_of(process.pid)


def test_the_draws_of_domainbed():
    """Its own numbers for the first draw of the first trial, of large images."""
    assert draw(SHARED["large"]["lr"], 1, 0) == pytest.approx(2.702893e-05, rel=1e-6)
    assert draw(SHARED["large"]["batch_size"], 1, 0) == 39


@pytest.mark.parametrize(("method", "least"), [("vrex", 3), ("hgp", 4), ("hutchinson", 4)])
def test_the_batch_is_drawn_from_where_the_sources_do(mini, method, least):
    seed = seed_hash(seed_hash(1, 0), "batch_size")
    expected = int(2 ** np.random.RandomState(seed).uniform(least, 9))  # small images
    settings = {"dataset": mini, "target": "street", "method": method, "optimizer": "adam", "hparams_seed": 1}
    assert resolve(RunConfig(**settings)).config.batch_size == expected


def test_draws_are_of_adam(mini, tmp_path):
    sweep = Sweep({"dataset": mini, "target": "street", "method": "erm"}, {"hparams_seed": ["0..3"]})
    with pytest.raises(MedicError, match="draws rates of Adam"):
        Planner().jobs(sweep.configs(tmp_path))
    jobs = Planner().jobs(sweep.changed({"optimizer": "adam"}, {}).configs(tmp_path))
    assert len(jobs) == 4
