"""Heads trained on the features of a frozen backbone."""

import re
from dataclasses import replace

import pytest
import torch

import medic
from medic.data.cache import cache_directory
from medic.errors import MedicError
from medic.models import create_backbone
from medic.runs.build import build_trainer
from medic.runs.reevaluate import recompute_outputs
from medic.training import Inference, frozen
from medic.training.frozen import FrozenBackbone
from medic.utils.plugins import Plugin
from tests.built import loaded, plan_of
from tests.messages import naming

SETTINGS = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 4, "tune": "head"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, mini):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))


def kept():
    return sorted(path.name for path in cache_directory().glob("features-*.npz"))


@pytest.mark.parametrize("method", ["erm", "medic++", "medic", "arpl", "fishr", "openmax", "swad"])
def test_every_kind_of_method_trains_on_features(mini, tmp_path, method):
    run = medic.train(dataset=mini, method=method, output=str(tmp_path / "runs"), **SETTINGS)
    assert 0 <= run.metrics["acc"] <= 1


def test_the_model_is_whole_and_its_backbone_untouched(mini, tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(3)
    weights = create_backbone("small").module.state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    run = medic.train(dataset=mini, output=str(tmp_path / "runs"), weights=str(tmp_path / "w.safetensors"), **SETTINGS)
    assert all(torch.equal(run.model.backbone.state_dict()[name], tensor) for name, tensor in weights.items())
    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)
    assert run.preprocessing.mean == (0.5,) * 3


def test_features_are_computed_once_for_all_runs(mini, tmp_path, capsys):
    for method, seed in (("erm", 0), ("medic++", 0), ("erm", 1)):
        medic.train(dataset=mini, method=method, seed=seed, output=str(tmp_path / "runs"), **SETTINGS)
    # Weights that are drawn are others for another seed.
    assert len(kept()) == 2
    assert capsys.readouterr().err.count("computing and caching features") == 2


def test_interrupted_features_are_resumed(mini, tmp_path, monkeypatch):
    """Stopped in the third part of the features, and started again: neither of the first two is computed again."""
    whole = medic.train(dataset=mini, output=str(tmp_path / "whole"), **SETTINGS)
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "again"))
    monkeypatch.setattr(frozen, "CHUNK", 128)
    compute, parts = FrozenBackbone._compute, []

    def stopped(infer, progress, positions):
        parts.append(int(positions[0]))
        if len(parts) == 3:
            raise KeyboardInterrupt
        return compute(infer, progress, positions)

    monkeypatch.setattr(FrozenBackbone, "_compute", staticmethod(stopped))
    with pytest.raises(KeyboardInterrupt, match="stopped: rerun the same command to resume"):
        medic.train(dataset=mini, output=str(tmp_path / "parts"), **SETTINGS)
    resumed = medic.train(dataset=mini, output=str(tmp_path / "parts"), **SETTINGS)
    assert parts == [0, 128, 256, 256, 384]
    assert (resumed.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert len(list((tmp_path / "again").glob("features-*.npz"))) == 1  # of the whole


def test_features_are_computed_with_fewer_images_at_a_time_if_memory_is_short(mini, tmp_path, monkeypatch, capsys):
    """Memory suffices for 10 images, of 400."""
    run, passes = Inference._pass, []

    def greedy(self, inputs):
        passes.append(len(inputs))
        if len(inputs) > 10 and inputs.shape[1] == 3:  # the head takes features
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n" * 30)
        return run(self, inputs)

    monkeypatch.setattr(Inference, "_pass", greedy)
    medic.train(dataset=mini, output=str(tmp_path / "runs"), **{**SETTINGS, "evaluate_every": 4})
    assert passes[:3] == [32, 16, 8]
    said = [line for line in capsys.readouterr().err.splitlines() if "memory" in line and "batch size" in line]
    assert len(said) == 2
    assert all(
        re.search(naming(f"out of memory batch size {size}"), line) for size, line in zip((16, 8), said, strict=True)
    )


def test_features_of_images_that_are_decoded_to_another_size_are_others(folder, tmp_path):
    settings = {**folder, "tune": "head", "output": str(tmp_path / "runs"), "track": "none"}
    for store in (32, 48):
        medic.train(**settings, store_size=store)
    assert len(kept()) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "backbone"}, "tune 'backbone' head"),
        ({"augment": "digits"}, "augment 'digits' --tune head"),
        ({"compile": "on"}, "--compile --tune head"),
        ({"layer": "mixstyle"}, "'mixstyle' backbone"),
        ({"method": "miro"}, "'miro' backbone"),
        ({"method": "daml"}, "'daml' --tune"),
    ],
)
def test_what_works_inside_the_backbone_is_refused(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(**{"dataset": mini, **SETTINGS, **settings})


@pytest.mark.slow
def test_a_transformer_sees_images_of_its_own_size(mini, tmp_path):
    """The built-in images are of 32 pixels, and this one is made for 160."""
    settings = {"dataset": mini, "target": "street", "method": "erm", "backbone": "test_vit", "device": "cpu"}
    run = medic.train(**settings, tune="head", iterations=2, batch_size=4, output=tmp_path, track="none", quiet=True)
    assert run.settings["image_size"] == 160
    data = plan_of(**{**settings, "dataset": "digits"}).config.data
    assert (data.image_size, data.store_size) == (160, 32)
    # The settings of a finished run are complete, and `medic evaluate --rerun` asks for them again.
    assert plan_of(**{**settings, "dataset": "digits"}, image_size=160, store_size=32).config.data == data


def test_features_of_other_code_are_others(mini, tmp_path):
    """The custom network may have been edited."""
    plan, dataset, problem = loaded(**{"dataset": mini, **SETTINGS, "output": str(tmp_path / "runs")})
    for sha256 in ("1" * 64, "2" * 64, "1" * 64):
        build_trainer(replace(plan, plugins=(Plugin("nets", sha256),)), dataset, problem)
    assert len(kept()) == 2


def test_features_of_an_object_are_not_kept(mini, tmp_path):
    network = create_backbone("small").module
    medic.train(model=network, dataset=mini, output=str(tmp_path / "runs"), **SETTINGS, image_size=32)
    assert kept() == []
