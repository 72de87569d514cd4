"""A file that may not be read is whole: the message says how to read it, and never to delete anything."""

import shutil
from pathlib import Path

import pytest

import medic
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.training import load_checkpoint
from tests.processes import drop_root, in_child


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The directory of a finished run."""
    return medic.train(**folder, output=tmp_path_factory.mktemp("runs"), quiet=True).path


@pytest.fixture
def copy(run, tmp_path, monkeypatch):
    """A copy of the run in the current folder, which a process may have open without the right to the folders above."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(run, "run")
    for part in (tmp_path / path, *(tmp_path / path).rglob("*")):
        part.chmod(0o755 if part.is_dir() else 0o644)
    return tmp_path / path


def says(function):
    """Call a function, print the message of its error, and return the exit code that a command would have."""
    try:
        function()
    except MedicError as error:
        print(error)
        return 2
    return 0


def use_run():
    """Read everything that a person can get from a run."""
    medic.Run("run").metrics  # noqa: B018
    medic.Run("run").check()
    assert medic.Run("run").predictor.classes
    load_checkpoint(Path("run/checkpoint/last.pt"))


@pytest.mark.parametrize(
    "name",
    [
        "done",
        "config.json",
        "model.json",
        "model.safetensors",
        "predictions.npz",
        "results.jsonl",
        "checkpoint/last.pt",
    ],
)
def test_a_file_of_a_run(copy, name):
    use_run()  # imports what a process without rights could not
    assert in_child(lambda: says(use_run), drop_root) == (0, "")
    (copy / name).chmod(0)
    code, said = in_child(lambda: says(use_run), drop_root)
    assert (code, said.count("\n")) == (2, 1)
    assert f"run/{name} cannot be read (Permission denied): make it readable with `chmod u+r run/{name}`" in said
    assert "delete" not in said


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_model_without_its_run(copy, name):
    medic.load("run")
    (copy / name).chmod(0)
    code, said = in_child(lambda: says(lambda: medic.load("run")), drop_root)
    assert code == 2
    assert f"run/{name} cannot be read (Permission denied): make it readable with `chmod u+r run/{name}`" in said


@pytest.mark.parametrize("name", ["done", "results.jsonl"])
def test_a_table_advises_to_delete_nothing(copy, name):
    def notes():
        print(*find_runs([Path()]).notes())

    (copy / name).chmod(0)
    _, said = in_child(lambda: says(notes), drop_root)
    way = f"make it readable with `chmod u+r run/{name}`, or ask its owner"
    assert said == f"run is left out: run/{name} cannot be read (Permission denied): {way}\n"
