"""Runs that a person names, and what tells them apart."""

import json

import pytest

import medic
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.sweeps.search import Study
from medic.sweeps.sweep import Planner
from medic.training import Trainer
from tests.messages import naming
from tests.runs.parts import in_parts
from tests.runs.short import SHORT


@pytest.fixture
def settings(mini, tmp_path):
    return {"dataset": mini, "method": "erm", **SHORT, "track": "none"}


def test_a_name_is_that_of_the_directory_and_no_part_of_the_result(settings, tmp_path):
    named, other = (medic.train(**settings, output=tmp_path, **name) for name in ({"name": "first.try-1"}, {}))
    assert named.path == tmp_path / "first.try-1"
    for name in ("model.safetensors", "predictions.npz"):
        assert (named.path / name).read_bytes() == (other.path / name).read_bytes()
    environments = [json.loads((run.path / "environment.json").read_text()) for run in (named, other)]
    assert [environment["run"] for environment in environments] == [other.path.name] * 2
    assert named.settings["name"] == "first.try-1"
    assert len(find_runs([tmp_path]).finished) == 2


def test_a_finished_run_is_found_by_its_name(settings, tmp_path, monkeypatch):
    run = medic.train(**settings, output=tmp_path, name="a")
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("trained again"))
    assert medic.train(**settings, output=tmp_path, name="a").path == run.path


def test_a_sweep_takes_a_finished_run_by_its_settings(settings, tmp_path):
    sweep_settings = {**settings, "output": str(tmp_path)}
    del sweep_settings["quiet"]
    run = medic.train(**settings, output=tmp_path, name="a")
    (tmp_path / "b").mkdir()
    for content in ("{", "[]", "{}"):  # of a directory that holds no run
        (tmp_path / "b" / "done").touch()
        (tmp_path / "b" / "environment.json").write_text(content)
        jobs = Planner().jobs({**sweep_settings, "seed": seed} for seed in (0, 1))
        assert jobs[0].directory.path == run.path
        assert jobs[1].directory.path.name not in ("a", "b")
    (run.path / "done").unlink()
    assert Planner().job(sweep_settings).directory.path != run.path


def test_a_named_run_resumes(settings, tmp_path, monkeypatch):
    whole = medic.train(**settings, output=tmp_path)
    run = in_parts({**settings, "name": "a"}, tmp_path, monkeypatch, (1, 3))
    assert run.path == tmp_path / "a"
    assert (run.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_name_of_other_settings_is_refused(settings, tmp_path):
    medic.train(**settings, output=tmp_path, name="a")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    for changed, named in (({"seed": 1}, "seed 0"), ({"target": "printed"}, "target street")):
        with pytest.raises(MedicError, match=naming(f"{tmp_path / 'a'} settings {named} --name")) as error:
            medic.train(**{**settings, **changed}, output=tmp_path, name="a")
        assert "\n" not in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == before


def test_an_unfinished_run_of_other_settings_is_refused(settings, tmp_path, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            medic.train(**settings, output=tmp_path, name="a")
    with pytest.raises(MedicError, match=naming("lr --name")):
        medic.train(**settings, lr=0.5, output=tmp_path, name="a")
    assert medic.train(**settings, output=tmp_path, name="a").metrics


def test_other_images_are_named(settings, tmp_path):
    medic.train(**settings, output=tmp_path, name="a")
    path = tmp_path / "a" / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run": "0" * 16}))
    with pytest.raises(MedicError, match=naming("images weights --name")):
        medic.train(**settings, output=tmp_path, name="a")


def test_a_folder_that_is_no_run_is_left_alone(settings, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.txt").write_text("mine")
    with pytest.raises(MedicError, match=naming("photos --name")):
        medic.train(**settings, output=tmp_path, name="photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["", "..", ".a", "a/b", "a b", "-a", "a\n", "logs", "0123456789abcdef"])
def test_names_that_are_refused(settings, tmp_path, name):
    with pytest.raises(MedicError, match="name"):
        medic.train(**settings, output=tmp_path / "runs", name=name)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_takes_no_name(settings, tmp_path):
    sweep_settings = {name: value for name, value in settings.items() if name != "quiet"}
    with pytest.raises(MedicError, match=naming("'a' sweep --name")):
        Planner().jobs([{**sweep_settings, "name": "a"}])
    pytest.importorskip("optuna")
    with pytest.raises(MedicError, match=naming("'a' search --name")):
        Study({**sweep_settings, "name": "a"}, "study", f"sqlite:///{tmp_path}/study.db", 1).run()
