"""Soups: finished runs whose weights are averaged, chosen by source validation alone."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import medic
from medic.analysis.load import repeated
from medic.cli import main
from medic.config.files import read_settings, to_json
from medic.data import BENCHMARKS
from medic.errors import MedicError
from medic.evaluation.evaluator import Evaluator
from medic.models import HALVES, OURS
from medic.results.runs import find_runs, list_runs
from medic.results.tabulate import tabulate
from medic.runs import soup as module
from medic.runs.reevaluate import recompute_outputs
from medic.runs.seal import make_seal
from medic.runs.soup import SHARED, SPLIT, choose
from medic.training import Trainer
from tests.data.pictures import picture
from tests.messages import naming
from tests.small import Ready, record_no_chance

SETTINGS = {
    "dataset": "mini", "target": "street", "method": "erm", "iterations": 15, "evaluate_every": 15, "batch_size": 16,
    "trial_seed": 5, "batch_norm": "local", "device": "cpu", "track": "none", "quiet": True,
}  # fmt: skip
RATES = {"a": 0.02, "b": 0.05, "c": 0.1}


class Normed(nn.Sequential):
    """A small network with batch norm that maps (N, 3, 32, 32) to (N, 32)."""

    num_features = 32

    def __init__(self):
        blocks = [
            nn.Sequential(nn.Conv2d(*shape, padding=padding), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
            for *shape, padding in ((3, 8, 3, 2, 1), (8, 8, 3, 1, 1), (8, 8, 3, 1, 1), (8, 8, 3, 1, 2))
        ]
        super().__init__(*blocks, nn.Flatten())


@pytest.fixture(scope="module")
def folder(mini_dataset, tmp_path_factory):
    """A folder with the run `scratch`, its weights, and three runs that start from them with other learning rates."""
    folder = tmp_path_factory.mktemp("candidates")
    ready = Ready("mini", mini_dataset.domains, mini_dataset.classes, mini_dataset)
    changes = {"name": "mini", "split": "mini-6-4", "backbone": "normed", "reader": lambda *_: ready}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEDIC_CACHE", str(folder / "cache"))
        patch.setitem(BENCHMARKS, "mini", dataclasses.replace(BENCHMARKS["digits"], **changes))
        patch.setitem(OURS, "normed", (lambda size: Normed(), HALVES))
        record_no_chance(patch)  # these runs are short
        scratch = medic.train(**SETTINGS, output=folder, name="scratch")
        save_file(scratch.model.backbone.state_dict(), folder / "weights.safetensors")
        train(folder)
        yield folder


def train(folder, **settings):
    """Train a run for every learning rate."""
    for name, rate in RATES.items():
        changed = {**SETTINGS, **settings, "weights": folder / "weights.safetensors"}
        medic.train(**changed, lr=rate, output=folder, name=name)


def stub(monkeypatch, own, soups):
    """Let the runs have these validation accuracies, and the soups these, in the order in which they are tried."""
    by_rate = {RATES[name]: accuracy for name, accuracy in own.items()}
    measured = iter(soups)
    monkeypatch.setattr(module, "validation_accuracy", lambda record: by_rate[record["hparams"]["lr"]])
    monkeypatch.setattr(Evaluator, "validation", lambda self: {"acc": next(measured)})


def kept_runs(run):
    return {Path(trial["path"]).name: trial["kept"] for trial in run.description["provenance"]["soup"]}


@pytest.mark.parametrize(
    ("accuracy", "kept"),
    [
        ({"0": 0.5, "01": 0.5, "012": 0.6}, "012"),
        ({"0": 0.5, "01": 0.4, "02": 0.5, "023": 0.3}, "02"),
        ({"0": 0.5, "01": 0.6, "012": 0.59, "013": 0.6}, "013"),
        ({"0": 0.5, "01": 0.49, "02": 0.49, "03": 0.49}, "0"),
    ],
)
def test_a_run_is_kept_if_the_accuracy_does_not_fall(accuracy, kept):
    members, tried = [], []

    def accuracy_with(run):
        tried.append("".join([*members, run]))
        return accuracy[tried[-1]]

    trials = choose("0123"[: len(accuracy)], accuracy_with, lambda: members.append(tried[-1][-1]))
    assert tried == list(accuracy)
    assert [trial.accuracy for trial in trials] == list(accuracy.values())
    assert "".join(members) == kept == "".join(str(i) for i, trial in enumerate(trials) if trial.kept)


def test_runs_are_tried_from_the_best_and_on_ties_as_given(folder, monkeypatch, tmp_path):
    stub(monkeypatch, {"a": 0.4, "b": 0.6, "c": 0.4}, [0.6, 0.6, 0.5])
    run = medic.soup([folder / name for name in "cab"], output=tmp_path, quiet=True)
    assert kept_runs(run) == {"b": True, "c": True, "a": False}
    assert list(kept_runs(run)) == ["b", "c", "a"]
    assert run.settings["soup"] == [medic.Run(folder / name).hash for name in "bca"]
    assert run.settings["lr"] == RATES["b"]
    assert run.description["provenance"]["selection"] == "greedy soup of 2 of 3 runs by source validation"


def test_weights_are_averaged_and_statistics_estimated(folder, monkeypatch, tmp_path):
    """Batch-norm statistics of averaged weights are not the average of the statistics."""
    stub(monkeypatch, {"a": 0.6, "b": 0.5, "c": 0.4}, [0.6, 0.5, 0.7])
    refresh, calls = Trainer.refresh_statistics, []
    monkeypatch.setattr(
        Trainer, "refresh_statistics", lambda self, count: (calls.append(count), refresh(self, count))[1]
    )
    run = medic.soup([folder / name for name in "abc"], output=tmp_path, quiet=True)
    assert kept_runs(run) == {"a": True, "b": False, "c": True}
    assert calls == [SETTINGS["iterations"]] * 2
    ours, *theirs = (load_file(path / "model.safetensors") for path in (run.path, folder / "a", folder / "c"))
    for name in dict(run.model.named_parameters()):
        mean = sum(tensors[name].double() for tensors in theirs) / 2
        assert torch.allclose(ours[name].double(), mean, rtol=0, atol=1e-6)
        assert not torch.equal(*(tensors[name] for tensors in theirs))
    name = "backbone.1.1.running_mean"
    assert not torch.allclose(ours[name], (theirs[0][name] + theirs[1][name]) / 2, rtol=0, atol=1e-4)


def test_a_soup_of_one_run_is_that_run(folder, monkeypatch, tmp_path):
    stub(monkeypatch, {"a": 0.6, "b": 0.5, "c": 0.4}, [0.6, 0.5, 0.5])
    run = medic.soup([folder / name for name in "abc"], output=tmp_path, quiet=True)
    ours, theirs = (load_file(path / "model.safetensors") for path in (run.path, folder / "a"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("settings", [{"batch_norm": "frozen"}, {"tune": "head"}])
def test_what_is_frozen_stays(folder, settings, tmp_path):
    shutil.copy(folder / "weights.safetensors", tmp_path)
    train(tmp_path, **settings)
    run = medic.soup([tmp_path / name for name in "abc"], output=tmp_path, quiet=True)
    pretrained, ours = load_file(folder / "weights.safetensors"), run.model.backbone.state_dict()
    frozen = pretrained if "tune" in settings else [name for name in pretrained if "running" in name]
    assert all(torch.equal(ours[name], pretrained[name]) for name in frozen)


def test_a_soup_is_a_run_like_any_other(folder, monkeypatch, tmp_path, capsys):
    sizes, infer = [], Evaluator.infer

    def spy(self, samples, features):
        sizes.append((len(samples), len(self.problem.validation)))
        return infer(self, samples, features)

    monkeypatch.setattr(Evaluator, "infer", spy)
    command = ["soup", *(str(folder / name) for name in "abc"), "--output", str(tmp_path), "--name", "soup"]
    assert main([*command, "--device", "cpu"]) == 0
    assert all(images == validation for images, validation in sizes[:3])  # nothing else until a soup is chosen
    run, runs = medic.Run(tmp_path / "soup"), [medic.Run(folder / name) for name in "abc"]
    own = [one.record["validation"]["acc"] for one in runs]
    trials = run.description["provenance"]["soup"]
    assert run.record["validation"]["acc"] == max(trial["soup_acc"] for trial in trials if trial["kept"]) >= max(own)
    out = capsys.readouterr().out
    assert out.split()[:6] == ["run", "validation", "Acc", "soup", "Acc", "kept"]
    assert f"runs by source validation: {run.path}" in out

    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)
    picture(0).save(tmp_path / "image.png")
    for line in ("evaluate {0}", "evaluate {0} --rerun", "calibrate {0} --accept 0.5 --output {1}/model", "report {0}",
                 "predict {0} {1}/image.png", "report {1}", "runs {0}", "table {0} {2}"):  # fmt: skip
        assert main(line.format(run.path, tmp_path, folder).split()) == 0, line
    assert "erm (soup of 3)" in capsys.readouterr().out
    page = (run.path / "report.html").read_text()
    assert f"medic soup {trials[0]['path']}" in page
    assert "greedy soup of" in page
    assert [one.settings.get("soup") for one in list_runs([run.path])] == [run.settings["soup"]]
    monkeypatch.setattr(Evaluator, "validation", lambda self: pytest.fail("computed again"))
    assert main(command) == 0


def test_a_table_has_a_row_for_soups(folder, monkeypatch, tmp_path):
    """Soups of as many runs share a row, whatever their runs; the better one on validation represents a seed."""
    stub(monkeypatch, {"a": 0.4, "b": 0.6, "c": 0.4}, [0.6, 0.7, 0.6, 0.5])
    for other in "ac":
        medic.soup([folder / "b", folder / other], output=tmp_path, quiet=True)
    results = find_runs([tmp_path, *(folder / name for name in "abc")]).finished
    rows = tabulate(results).rows
    assert [row.label for row in rows if "soup 2" in row.label] == ["erm: soup 2"]
    assert len(rows) == 4
    assert any("soup" in note for note in tabulate(results).notes)


def test_an_interrupted_soup_is_made_by_the_same_command(folder, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    runs = [folder / name for name in "ab"]
    for function in ("medic.evaluation.evaluator.Evaluator.record", "medic.runs.unfinished.write_model"):
        with monkeypatch.context() as patch:
            patch.setattr(function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                medic.soup(runs, output=tmp_path, name="soup", quiet=True)
        assert not find_runs([tmp_path]).finished
    run = medic.soup(runs, output=tmp_path, name="soup", quiet=True)
    assert len(find_runs([tmp_path]).finished) == 1
    with pytest.raises(MedicError, match=naming("--name")):
        medic.soup([*runs, folder / "c"], output=tmp_path, name="soup", quiet=True)
    assert run.metrics


def test_a_soup_of_the_runs_of_a_sweep(folder, tmp_path, capsys):
    candidates = tmp_path / "candidates"
    for name in "ab":
        shutil.copytree(folder / name, candidates / name)
    (candidates / "logs").mkdir()  # as a sweep leaves it
    assert main(["soup", str(candidates), "--output", str(tmp_path / "runs"), "--name", "soup"]) == 0
    made = medic.soup([folder / "a", folder / "b"], output=tmp_path / "again", quiet=True)
    weights = [path / "model.safetensors" for path in (tmp_path / "runs" / "soup", made.path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_soup_is_made_by_its_command_alone(folder, tmp_path, capsys):
    run = medic.soup([folder / name for name in "ab"], output=tmp_path, quiet=True)
    for line in (f"train --config {run.path}/config.json", "train --target street --soup a"):
        assert main(line.split()) == 2
        assert "`medic soup`" in capsys.readouterr().err
    with pytest.raises(MedicError, match=naming("soup extend")):
        medic.train(extend=run.path, iterations=99)
    with pytest.raises(MedicError, match=naming("soup training")), repeated(run):
        pass


def changed(path, folder, settings=None, environment=None, provenance=None):
    """Return a copy of a run with other content."""
    copy = folder / "other"
    shutil.copytree(path, copy)
    (copy / "config.json").write_text(to_json({**read_settings(copy / "config.json"), **(settings or {})}))
    noted = json.loads((copy / "environment.json").read_text())
    (copy / "environment.json").write_text(json.dumps({**noted, "run": "0" * 16, **(environment or {})}))
    described = json.loads((copy / "model.json").read_text())
    described["provenance"] |= provenance or {}
    del described["checksum"]
    (copy / "model.json").write_text(json.dumps(described))
    (copy / "done").write_text(make_seal(copy, 1.0))
    return copy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"settings": {name: ["x", "y"]}}, f"{name} x, y") for name in SHARED),
        *(({"settings": {name: 7}}, f"{name} 7 validation --{name}") for name in SPLIT),
        ({"environment": {"weights": "abcdef0123"}}, "abcdef01 --weights"),
        ({"environment": {"weights": None}}, "random --weights"),
        ({"provenance": {"images": "0"}}, "'mini' images"),
    ],
)
def test_runs_that_do_not_match(folder, changes, message, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "load_run_images", lambda *_, **__: pytest.fail("images were read"))
    other = changed(folder / "b", tmp_path, **changes)
    with pytest.raises(MedicError, match=naming(f"{folder / 'a'} {other} {message}")) as error:
        medic.soup([folder / "a", other], output=tmp_path)
    assert "\n" not in str(error.value)


def test_runs_that_cannot_be_averaged(folder, tmp_path):
    with pytest.raises(MedicError, match=naming("two runs, 1")):
        medic.soup([folder / "a"], output=tmp_path)
    with pytest.raises(MedicError, match=naming(f"{folder / 'b'} same run")):
        medic.soup([folder / name for name in "abb"], output=tmp_path)
    with pytest.raises(MedicError, match=naming(f"{folder / 'scratch'} random weights --weights")):
        medic.soup([folder / "scratch", folder / "b"], output=tmp_path)
    other = medic.train(
        **{**SETTINGS, "trial_seed": None}, seed=1, weights=folder / "weights.safetensors", output=tmp_path
    )
    with pytest.raises(MedicError, match=naming(f"{other.path} trial_seed 5 1 --trial-seed")):
        medic.soup([folder / "a", other], output=tmp_path)
    save_file(Normed().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(MedicError, match=naming(f"{tmp_path / 'w.safetensors'} --weights")):
        medic.soup([folder / "a", folder / "b"], weights=tmp_path / "w.safetensors", output=tmp_path)
    assert not [run for run in find_runs([tmp_path]).finished if "soup" in run.settings]
