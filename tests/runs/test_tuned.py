"""Runs that train a part of a backbone: adapters, norms or its last blocks."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

import medic
from medic.errors import MedicError
from medic.models import create_backbone
from medic.runs.layout import CHECKPOINT
from medic.runs.reevaluate import recompute_outputs
from medic.training import Inference, load_checkpoint
from medic.training.trainer import Trainer
from tests.built import plan_of
from tests.messages import naming
from tests.runs.parts import in_parts
from tests.runs.short import SHORT

SETTINGS = {
    "target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 4, "backbone": "test_vit", "image_size": 32,
    "device": "cpu", "track": "none", "quiet": True, "trial_seed": 0,
}  # fmt: skip
RANK = 2


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(3)
    save_file(create_backbone("test_vit", size=32).module.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def changed(run, weights):
    """Return how much each tensor of the backbone moved, by name, where it did."""
    tensors = load_file(run.path / "model.safetensors")
    moved = {name: tensors[f"backbone.{name}"] - before for name, before in load_file(weights).items()}
    return {name: difference for name, difference in moved.items() if bool(difference.any())}


@pytest.mark.parametrize("method", ["erm", "medic++", "medic"])
def test_adapters_change_the_weights_by_a_low_rank(mini, tmp_path, weights, method):
    settings = {**SETTINGS, "method": method, "weights": str(weights), "tune": "adapters", "lora_rank": RANK, "lr": 0.1}
    run = medic.train(dataset=mini, output=str(tmp_path / "runs"), **settings)
    moved = changed(run, weights)
    assert {name.split(".")[-2] for name in moved} == {"qkv", "proj", "fc1", "fc2"}
    for difference in moved.values():
        values = torch.linalg.svdvals(difference.double())
        assert values[RANK - 1] > 1e-7
        assert values[RANK] < 1e-6 * max(1.0, float(values[0]))


@pytest.mark.parametrize("method", ["erm", "medic++"])
def test_the_state_of_training_is_that_of_adapters_and_head(mini, tmp_path, weights, method):
    """Neither the optimizer nor the weight average keeps a copy of a weight that is not trained."""
    settings = {**SETTINGS, "method": method, "weights": str(weights), "tune": "adapters", "averaging": "tail"}
    run = medic.train(dataset=mini, output=str(tmp_path / "runs"), **settings)
    state = load_checkpoint(run.path / CHECKPOINT)
    trainer = state["trainer"]
    trained = [v.shape for name, v in trainer["model"].items() if "lora_" in name or not name.startswith("backbone.")]
    moments = trainer["optimizer"]["state"].values()
    assert sorted(values["exp_avg"].shape for values in moments) == sorted(trained)
    assert sorted(tensor.shape for tensor in state["averaging"]["parameters"]) == sorted(trained)


def test_predictions_are_those_of_the_written_model(mini, tmp_path, weights):
    settings = {**SETTINGS, "weights": str(weights), "tune": "adapters"}
    run = medic.train(dataset=mini, output=str(tmp_path / "runs"), **settings)
    assert not any("lora" in name for name in load_file(run.path / "model.safetensors"))
    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits, rtol=0, atol=1e-6)


def test_no_graph_is_launched_for_layers_that_were_merged(mini, tmp_path, weights, monkeypatch):
    """A CUDA graph reads the memory of the weights that it was captured with, so it must not outlive them."""
    captured = []

    def capture(inference, positions):
        tensors = [weight.data_ptr() for weight in inference.model.parameters()]
        captured.append(len(tensors))

        def launch(positions):
            assert [weight.data_ptr() for weight in inference.model.parameters()] == tensors
            return inference._forward(positions)

        return launch

    monkeypatch.setattr(Inference, "_capture", capture)
    make = Trainer.inference
    monkeypatch.setattr(Trainer, "inference", lambda *args: dataclasses.replace(make(*args), captured=True))
    settings = {**SETTINGS, "dataset": mini, "weights": str(weights)}
    medic.train(**settings, tune="adapters", output=str(tmp_path / "adapters"))
    assert len(captured) == 2
    assert captured[0] > captured[1]  # the second model has no adapters
    medic.train(**settings, output=str(tmp_path / "all"))
    assert len(captured) == 3  # nothing was replaced


@pytest.mark.gpu
def test_a_gpu_writes_the_predictions_of_the_merged_model(mini, tmp_path, weights):
    settings = {**SETTINGS, "weights": str(weights), "tune": "adapters", "device": "cuda", "precision": "fp32"}
    run = medic.train(dataset=mini, output=str(tmp_path), lr=0.1, **{**settings, "iterations": 40, "all_scores": True})
    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("tune", "parts"), [("norm", {"norm1", "norm2", "norm"}), ("last:1", {"blocks.5", "norm"})])
def test_the_other_weights_stay(mini, tmp_path, weights, tune, parts):
    run = medic.train(dataset=mini, output=str(tmp_path), weights=str(weights), tune=tune, lr=0.1, **SETTINGS)
    names = {name.rpartition(".")[0] for name in changed(run, weights)}
    assert names
    assert all(any(part in name.split(".") or name.startswith(part) for part in parts) for name in names)


@pytest.mark.slow
def test_interrupted_it_is_the_same(mini, tmp_path, weights, monkeypatch):
    settings = {"dataset": mini, **SETTINGS, "method": "medic++", "weights": str(weights), "tune": "adapters"}
    settings |= {"lora_dropout": 0.2}
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (1, 3))
    for name in ("model.safetensors", "predictions.npz", "model.json"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


@pytest.mark.slow
def test_a_soup_of_runs_with_adapters(mini, tmp_path, weights):
    settings = {**SETTINGS, "dataset": mini, "weights": str(weights), "tune": "adapters", "output": str(tmp_path)}
    runs = [medic.train(**settings, lr=lr) for lr in (0.01, 0.05)]
    made = medic.soup([run.path for run in runs], output=tmp_path / "soups")
    assert made.config.model.tune == "adapters"
    assert not any("lora" in name for name in load_file(made.path / "model.safetensors"))


@pytest.mark.slow
def test_an_exported_model_decides_alike(mini, tmp_path, weights):
    run = medic.train(dataset=mini, output=str(tmp_path), weights=str(weights), tune="adapters", **SETTINGS)
    assert medic.export(run, tmp_path / "model.onnx").difference < 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "half"}, "'half' adapters"),
        ({"lora_rank": 4}, "--lora-rank all --tune adapters"),
        ({"tune": "adapters", "lora_rank": 0}, "lora_rank 0"),
        ({"tune": "adapters", "lora_dropout": 1.0}, "lora_dropout 1"),
        ({"freeze": "backbone"}, "'freeze' --tune head"),
    ],
)
def test_mistakes(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, **{"backbone": "test_vit", "image_size": 32, "device": "cpu", **settings})


@pytest.mark.parametrize("tune", ["all", "head"])
def test_the_model_of_a_run_is_a_file_of_weights(mini, tmp_path, tune):
    """It also has heads, held-out scores and, after `--tune head`, the scaling of the features."""
    settings = {"dataset": mini, "method": "medic++", "output": tmp_path, **SHORT}
    first = medic.train(**settings, tune=tune)
    again = medic.train(**settings, weights=str(first.path / "model.safetensors"), tune="head", seed=1)
    assert all(map(torch.equal, first.model.backbone.state_dict().values(), again.model.backbone.state_dict().values()))
