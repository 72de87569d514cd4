"""Collections of runs: which runs have a setting, and the text that an interpreter shows."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import medic
from medic.analysis.result import Result
from medic.errors import MedicError
from tests.results.written import seal, write_run


@pytest.fixture
def folder(tmp_path):
    """Runs of two methods, and one more with another learning rate."""
    folder = tmp_path / "runs"
    for method in ("erm", "medic++"):
        for seed in range(2):
            settings = {"lr": 0.06, "hparams": {"trust": 5, "prompt": 0.1}}
            write_run(folder, f"{method}-{seed}", method, "a", seed, (0.5, 0.1), user_settings={}, **settings)
    write_run(folder, "low", "erm", "a", 0, (0.6, 0.1), user_settings={"lr": 0.01}, lr=0.01)
    return folder


def write_unfinished(folder, name, **settings):
    """Write a run that has settings and no results."""
    path = write_run(folder, name, "erm", "b", 0, (0.5,), **settings)
    for file in ("done", "results.jsonl"):
        (path / file).unlink()
    return path


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["erm-0", "erm-1", "low", "medic++-0", "medic++-1"]),
        ({"lr": 0.06}, ["erm-0", "erm-1", "medic++-0", "medic++-1"]),
        ({"lr": 0.06 + 1e-17, "method": "erm"}, ["erm-0", "erm-1"]),
        ({"learning_rate": [0.01, 0.02]}, ["low"]),
        ({"method": ["erm", "medic++"], "seed": range(1, 3)}, ["erm-1", "medic++-1"]),
        ({"method": "MEDICpp", "seed": 0}, ["medic++-0"]),
        ({"target": "a", "lr": 0.01}, ["low"]),
        ({"target": ["a", "b"], "sources": ["b", "c"], "lr": 0.01}, ["low"]),
        ({"sources": "b"}, []),
        ({"hparams": {"trust": 5}, "seed": 1}, ["erm-1", "medic++-1"]),
        ({"label_noise": None, "lr": 0.01}, ["low"]),
        ({"backbone": "convnet"}, []),
        ({"seed": np.arange(1, 3), "lr": 0.06}, ["erm-1", "medic++-1"]),
        ({"seed": iter([1, 2]), "lr": 0.06}, ["erm-1", "medic++-1"]),
        ({"sources": ["c", "b"], "lr": 0.01}, ["low"]),
    ],
)
def test_runs_with_a_setting(folder, settings, names):
    assert [run.path.name for run in medic.load_runs(folder).where(**settings)] == names


def test_settings_that_only_the_user_wrote(folder):
    """A complete configuration has their classes and batch size instead."""
    write_run(folder, "drawn", "erm", "a", 0, (0.5,), user_settings={"split": "random:4", "images": 36})
    for name, value in (("split", "random:4"), ("images", 36)):
        assert [run.path.name for run in medic.load_runs(folder).where(**{name: value})] == ["drawn"]


def test_runs_in_every_state_are_selected(folder):
    write_unfinished(folder, "later")
    write_unfinished(folder, "failed").joinpath("error.json").write_text("{}")
    write_unfinished(folder, "other", lr=0.3)
    (write_run(folder, "damaged", "erm", "b", 1, (0.5,)) / "config.json").write_text("{")
    runs = medic.load_runs(folder)
    assert repr(runs) == f"Runs({str(folder)!r}: 5 finished, 2 unfinished, 1 failed, 1 damaged)"
    some = runs.where(target="b", lr=None)
    assert [run.path.name for run in (*some.unfinished, *some.failed)] == ["later", "failed"]
    assert repr(some) == "Runs(0 finished, 1 unfinished, 1 failed)"
    assert some.folder is None  # or a report on some runs would replace the report on the folder


def test_a_comparison_after_another_run(folder):
    """Both rows of ERM match, so the comparison needs the runs of one."""
    runs = medic.load_runs(folder)
    with pytest.raises(MedicError, match=r"'erm' matches 2 rows: use one of 'erm: lr 0.01'; 'erm: lr 0.06'"):
        runs.compare("erm", "medic++")
    assert runs.where(lr=0.06).compare("erm", "medic++").over == "erm"


def test_an_unknown_setting(folder):
    runs = medic.load_runs(folder)
    with pytest.raises(MedicError, match="unknown setting 'iteration': did you mean 'iterations'"):
        runs.where(iteration=300)
    with pytest.raises(MedicError, match="lr must be a number, got '0"):
        runs.where(lr="0.06")


def test_a_run_says_what_it_is(folder):
    run = medic.load_runs(folder / "medic++-1")[0]
    assert repr(run) == str(run) == f"Run({str(run.path)!r}, medic++ → a, seed 1)"
    assert "<td>medic++</td><td>a</td><td>1</td><td>50.0</td>" in run._repr_html_()
    (run.path / "config.json").write_text("{")
    assert repr(medic.Run(run.path)) == f"Run({str(run.path)!r})"
    path = folder / "empty"
    path.mkdir()
    assert repr(medic.Run(path, unfinished=True)) == f"Run({str(path)!r})"


def test_a_run_with_strange_settings_has_a_repr(folder):
    path = folder / "low"
    settings = json.loads((path / "config.json").read_text())
    for target, said in (([None], ""), (["a\nb"], ", erm → a b, seed 0")):
        (path / "config.json").write_text(json.dumps({**settings, "target": target}))
        seal(path)
        assert repr(medic.Run(path)) == f"Run({str(path)!r}{said})"


def test_a_table_is_its_text(folder):
    table = medic.load_runs(folder).table(metrics=["acc"])
    assert f"{table!r}\n" == f"{table}\n" == table.to_text()
    assert "medic++       50.0 ± 0.0" in str(table)


def test_an_analysis_is_its_rows():
    @dataclass(frozen=True)
    class Sizes(Result):
        values: np.ndarray

        def rows(self):
            return [{"method": "medic++", "size": str(value)} for value in self.values]

        def notes(self):
            return ["in pixels"]

    assert repr(Sizes(np.array([7, 10]))) == "method   size\nmedic++     7\nmedic++    10\nin pixels"
    assert repr(Sizes(np.array([]))) == "in pixels"
