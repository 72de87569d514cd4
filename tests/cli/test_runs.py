"""`medic runs`: every run of a folder with its state and numbers; `--name`; what `medic train` and `sweep` end with."""

import json
import os
import re
import resource
import subprocess
import sys
import time

import pytest

from medic.reports.terminal import LONG
from medic.runs.run import Run
from medic.training import Trainer
from medic.utils.files import locked
from tests.messages import naming
from tests.results.written import seal, write_run

STATES = ("finished", "unfinished", "failed", "damaged", "running")


@pytest.fixture
def folder(medic, short, monkeypatch, tmp_path):
    """A folder with a run in every state, written in the order of `STATES` one minute after the other."""
    runs = tmp_path / "runs"
    step = Trainer.step

    def interrupted(self):
        import signal

        signal.raise_signal(signal.SIGINT)
        return step(self)

    for seed, name in enumerate(STATES):
        command = ["train", *short, "--method", "erm", "--track", "none", "--name", name, "--seed", str(seed)]
        with monkeypatch.context() as patch:
            if name in ("unfinished", "failed", "running"):
                patch.setattr(Trainer, "step", interrupted)
            assert medic(*command)[0] in (0, 130)
    (runs / "failed" / "error.json").write_text(json.dumps({"reason": "the loss became nan", "trace": ""}))
    path = runs / "damaged" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    for minute, name in enumerate(STATES):
        for file in (runs / name).rglob("*"):
            os.utime(file, (1e9 + 60 * minute,) * 2)
    with locked(runs / "running" / ".lock"):
        yield runs


def rows(out):
    titles, *lines = out.splitlines()
    return {
        line.split()[0]: dict(zip(re.split(r"  +", titles), re.split(r"  +", line), strict=False)) for line in lines
    }


def test_every_state(medic, folder):
    code, out, err = medic("runs", str(folder))
    assert code == 0
    table = rows(out)
    assert list(table) == list(STATES)
    assert table["unfinished"]["state"] == "unfinished at 1 of 2"
    assert table["running"]["state"] == "running at 1 of 2"
    for seed, name in enumerate(STATES):
        assert (table[name]["method"], table[name]["target"], table[name]["seed"]) == ("erm", "street", str(seed))
        assert table[name]["state"].split()[0] == name
    metrics = Run(folder / "finished").metrics
    assert [table["finished"][title] for title in ("Acc", "H-score", "OSCR")] == [
        f"{100 * metrics[key]:.1f}" for key in ("acc", "hscore", "oscr")
    ]
    assert table["finished"]["written"] == time.strftime("%Y-%m-%d %H:%M", time.localtime(1e9))
    assert re.search(naming(f"{folder / 'failed'} nan"), err)
    assert re.search(naming(f"{folder / 'damaged'} results.jsonl"), err)


def test_json(medic, folder):
    runs = json.loads(medic("runs", str(folder), "--format", "json")[1])
    assert [one["state"] for one in runs] == list(STATES)
    assert [one["run"] for one in runs] == list(STATES)
    first, second, *_ = runs
    assert first["target"] == ["street"]
    assert first["acc"] == Run(first["path"]).metrics["acc"]
    assert (second["iteration"], second["iterations"], second["acc"]) == (1, 2, None)
    assert (first["reason"], runs[2]["reason"]) == (None, "the loss became nan")


def test_one_run_and_several_folders(medic, folder, tmp_path):
    assert list(rows(medic("runs", str(folder / "finished"))[1])) == ["finished"]
    both = rows(medic("runs", str(folder / "finished"), str(folder / "failed"))[1])
    assert list(both) == [str(folder / "finished"), str(folder / "failed")]
    (tmp_path / "empty").mkdir()
    code, out, err = medic("runs", str(tmp_path / "empty"))
    assert (code, out) == (0, "")
    assert "no runs" in err
    assert medic("runs", str(tmp_path / "empty"), "--format", "json")[1] == "[]\n"
    assert medic("runs", str(tmp_path / "nothing"))[0] == 2
    assert medic("runs", str(folder), "--format", "xml")[0] == 2


@pytest.mark.parametrize("model", [True, False])
def test_the_selected_evaluation_is_shown(medic, tmp_path, model):
    """Also of runs whose model was deleted, as in tables."""
    path = write_run(tmp_path, "a", "erm", "a", 3, [0.1, 0.8, 0.3])  # the last but one is best on validation
    (path / "model.json").write_text(json.dumps({"provenance": {"record": 1}}))
    seal(path)
    if not model:
        (path / "model.json").unlink()
    row = rows(medic("runs", str(tmp_path))[1])["a"]
    assert (row["state"], row["Acc"]) == ("finished", "80.0")


@pytest.mark.parametrize(("number", "said"), [(4, "1 more run is damaged"), (5, "2 more runs are damaged")])
def test_many_damaged_runs(medic, tmp_path, number, said):
    for name in range(number):
        (write_run(tmp_path, str(name), "erm", "a", 0, [0.1, 0.2]) / "results.jsonl").write_text("{")
    err = medic("runs", str(tmp_path))[2]
    assert err.splitlines()[-1].endswith(said)
    assert err.count("results.jsonl") == 3


def test_unreadable_files_do_not_end_the_list(medic, tmp_path):
    for name in ("a", "b", "c", "d"):
        write_run(tmp_path, name, "erm", "a", 0, [0.1, 0.2])
    (tmp_path / "a" / "done").write_text("{")
    (tmp_path / "b" / "results.jsonl").unlink()
    (tmp_path / "c" / "done").unlink()
    (tmp_path / "c" / "config.json").write_text("method: [")
    (tmp_path / "d" / "done").unlink()
    (tmp_path / "d" / "error.json").write_text("[")
    os.mkfifo(tmp_path / "c" / "checkpoint")  # nobody writes into it
    (tmp_path / "d" / "config.json").unlink()
    os.mkfifo(tmp_path / "d" / "config.json")
    table = rows(medic("runs", str(tmp_path))[1])
    assert {name: row["state"].split()[0] for name, row in table.items()} == {
        "a": "damaged", "b": "damaged", "c": "unfinished", "d": "failed",
    }  # fmt: skip


def test_many_runs_are_listed_fast_and_without_torch(tmp_path):
    """In far less than a second for each thousand; the bound leaves room for a machine that is busy."""
    for number in range(500):
        path = write_run(tmp_path, f"{number:04}", "erm", "a", number, [0.1, 0.2])
        (path / "model.json").write_text(json.dumps({"provenance": {"record": 1}}))
        seal(path)
    code = "import sys, medic.cli; medic.cli.main(['runs', sys.argv[1]]); print('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    titles, *lines, torch = done.stdout.splitlines()
    assert (len(lines), torch) == (500, "False")
    assert len(lines) > LONG
    assert titles.index("method") == lines[0].index("erm")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2


def test_a_named_run_on_the_command_line(medic, short, tmp_path):
    code, out, _ = medic("train", *short, "--method", "erm", "--name", "try")
    assert code == 0
    path = tmp_path / "runs" / "try"
    assert out.splitlines()[-2:] == [f"averaged weights: {path}", f"write a report with: medic report {path}"]
    assert medic("train", *short, "--method", "erm", "--name", "try")[0] == 0
    code, _, err = medic("train", *short, "--method", "erm", "--name", "try", "--seed", "1")
    assert code == 2
    assert re.search(naming(f"{path} seed --name"), err.splitlines()[-1])
    config = ["train", "--config", str(path / "config.json")]
    assert medic(*config)[1].splitlines()[-1].endswith(str(path))  # the same run
    assert re.search(r"/[0-9a-f]{16}$", medic(*config, "--seed", "1")[1])  # another one, which has no name
    code, _, err = medic("sweep", *short, "--name", "try", "--span", "seed=0,1")
    assert code == 2
    assert re.search(naming("'try' sweep --name"), err)
    code, _, err = medic("reproduce", "paradigms", "--quick", "--name", "try", "--dry-run", "--output", str(tmp_path))
    assert code == 2
    assert re.search(naming("'try' sweep --name"), err)


def test_what_a_sweep_ends_with(medic, short, tmp_path):
    command = ["sweep", *short, "--method", "erm", "--track", "none", "--span", "seed=0,1", "--executor", "here"]
    runs = tmp_path / "runs"
    now, again = (medic(*command)[1].splitlines() for _ in range(2))
    start = rf"2 of 2 runs are finished in {re.escape(str(runs))}: "
    assert re.fullmatch(start + r"0 before this command, 2 trained now \(total run time: \d+ s\)", now[0])
    assert re.fullmatch(start + "2 before this command, none trained now", again[0])
    assert now[1] == again[1] == f"compare the runs with: medic table {runs}"
