"""A flipped bit in a file of a run is noticed, or has no effect."""

import itertools
import json
import os
import random
import shutil
import sys

import numpy as np
import pytest

import medic
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.runs.layout import DONE, RECORDS
from medic.runs.run import Run
from medic.runs.seal import Damaged, make_seal, read_seal
from medic.training import load_checkpoint
from tests.messages import naming
from tests.runs.short import SHORT

NEEDS_PROC = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SETTINGS = {"evaluate_every": 1, "objective": "ce+ova"}


def flip(path, position, bit=0):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The directory of a finished run, which no test changes."""
    return medic.train(**SETTINGS, **folder, output=tmp_path_factory.mktemp("whole"), quiet=True).path


@pytest.fixture
def copy(whole, tmp_path):
    """Return a function that makes a fresh copy of a finished run."""
    numbers = itertools.count()
    return lambda: shutil.copytree(whole, tmp_path / "copies" / str(next(numbers)))


def used(path):
    """Everything that a person can get from a finished run."""
    run = Run(path)
    run.check()
    [result] = find_runs([path]).finished
    return run.settings, run.metrics, list(run.model.state_dict()), run.splits, run.score.name, result.environment


@pytest.mark.parametrize(
    "name",
    ["settings.json", "config.json", "done", "environment.json", "model.json", "model.safetensors", "predictions.npz",
     "results.jsonl"],
)  # fmt: skip
def test_a_finished_run(name, copy):
    draws = random.Random(name)
    for _ in range(3):
        path = copy()
        flip(path / name, draws.randrange((path / name).stat().st_size), draws.randrange(8))
        with pytest.raises(MedicError, match=naming(name)):
            used(path)


def test_a_table_leaves_a_damaged_run_out_and_names_the_file(copy):
    path = copy()
    records = path / "results.jsonl"
    changed = records.read_text().replace('"acc": 0.', '"acc": 0.9', 1)
    assert changed != records.read_text()
    records.write_text(changed)
    runs = find_runs([path.parent])
    assert (runs.finished, [run.path for run in runs.damaged]) == ((), [path])
    assert "results.jsonl" in runs.damaged[0].damage


def test_a_table_leaves_out_a_run_whose_environment_is_damaged(copy):
    path = copy()
    flip(path / "environment.json", 20)
    runs = find_runs([path.parent])
    assert runs.finished == ()
    reason = f"its environment.json is damaged: delete {path} and train the run again"
    assert [(run.path, run.damage) for run in runs.damaged] == [(path, reason)]


@pytest.mark.parametrize("position", [0, 2**20 - 1, 2**20, 3 * 2**20 - 1])
def test_every_part_of_a_large_file_is_sealed(position, tmp_path):
    (tmp_path / "large").write_bytes(bytes(3 * 2**20))
    (tmp_path / RECORDS).touch()
    (tmp_path / DONE).write_text(make_seal(tmp_path, 1.0))
    seal = read_seal(tmp_path)
    seal.check(tmp_path / "large")
    flip(tmp_path / "large", position)
    with pytest.raises(Damaged, match="its large is damaged"):
        seal.check(tmp_path / "large")


def test_the_same_command_does_not_return_a_damaged_run(whole, folder, tmp_path):
    shutil.copytree(whole, tmp_path / whole.name)
    flip(tmp_path / whole.name / "predictions.npz", 500)
    with pytest.raises(MedicError, match=naming("predictions.npz")):
        medic.train(**SETTINGS, **folder, output=str(tmp_path), quiet=True)


def test_a_checkpoint(whole, tmp_path):
    """Flips in padding and in unused fields of the archive change nothing; all others are noticed."""

    def plain(tree):
        if isinstance(tree, dict):
            return {key: plain(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return [plain(value) for value in tree]
        return tree.tolist() if hasattr(tree, "tolist") else tree

    path = whole / "checkpoint" / "last.pt"
    state, draws, noticed = json.dumps(plain(load_checkpoint(path))), random.Random(0), 0
    for _ in range(40):
        shutil.copy(path, tmp_path / "last.pt")
        flip(tmp_path / "last.pt", draws.randrange(path.stat().st_size), draws.randrange(8))
        try:
            assert json.dumps(plain(load_checkpoint(tmp_path / "last.pt"))) == state
        except MedicError:
            noticed += 1
    assert noticed > 20


def test_settings_that_were_lost_are_written_again_when_a_run_resumes(mini, tmp_path, monkeypatch):
    from tests.runs.parts import in_parts

    settings = {"dataset": mini, "method": "erm", **SHORT}
    train = medic.train

    def losing(**options):
        for path in tmp_path.glob("*/config.json"):
            path.unlink()
        return train(**options)

    monkeypatch.setattr(medic, "train", losing)
    assert in_parts(settings, tmp_path, monkeypatch, (1,)).settings["method"] == "erm"


@pytest.mark.parametrize("content", ["", "done", '{"seconds": 1.5}\n', '{"seconds": 1.5, "checksums": {}}\n1\n'])
def test_a_seal_that_is_none(copy, content):
    path = copy()
    (path / "done").write_text(content)
    assert [run.path for run in find_runs([path.parent]).damaged] == [path]


@pytest.mark.parametrize("name", ["pipe", pytest.param("/proc/self/mem", marks=NEEDS_PROC)])
def test_records_that_are_no_file(copy, name):
    path = copy()
    (path / "results.jsonl").unlink()
    os.mkfifo(path / "results.jsonl") if name == "pipe" else (path / "results.jsonl").symlink_to(name)
    assert "results.jsonl" in find_runs([path.parent]).damaged[0].damage


def test_an_unfinished_run_without_a_target(copy):
    path = copy()
    (path / "done").unlink()
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "target": 3}))
    runs = find_runs([path.parent])
    assert ([run.path for run in runs.unfinished], runs.missing) == ([path], [])


def test_predictions_that_unpack_to_more_than_they_are_are_not_read(copy, monkeypatch):
    monkeypatch.setattr("medic.utils.files.MAX_ARRAYS", 2**16)
    path = copy()
    arrays = dict(np.load(path / "predictions.npz"))
    np.savez_compressed(path / "predictions.npz", **arrays, features=np.zeros((len(arrays["label"]), 1000)))
    (path / DONE).write_text(make_seal(path, 1.0))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the file is read"))
    with pytest.raises(MedicError, match=naming("predictions.npz uncompressed")):
        _ = Run(path).predictions
