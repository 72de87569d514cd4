"""What a run refuses, and what it stops at: nothing is lost or left behind."""

import pytest
import torch

import medic
from medic.config.resolve import resolve
from medic.errors import MedicError, TrainingError
from medic.runs.hints import learning_hint, lower_rates
from medic.training import Trainer
from tests.messages import naming
from tests.runs.short import SHORT


def test_a_loss_that_is_not_a_number_stops_the_run(mini, tmp_path):
    settings = {**SHORT, "iterations": 50, "checkpoint_every": 1, "evaluate_every": 50}
    with pytest.raises(TrainingError, match=r"iteration \d+\b.*checkpoint.*iteration \d+") as error:
        medic.train(dataset=mini, method="erm", lr=1e6, batch_size=8, output=str(tmp_path), **{
            key: value for key, value in settings.items() if key != "batch_size"})  # fmt: skip
    assert str(error.value).endswith("is kept; lower --lr below 1e+06 or omit it")
    (directory,) = tmp_path.iterdir()
    kept = torch.load(directory / "checkpoint" / "last.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in kept["trainer"]["model"].values())
    assert not (directory / "done").exists()


def test_the_rate_of_the_inner_steps_is_blamed_if_it_was_given(mini, tmp_path):
    settings = {**SHORT, "iterations": 50, "evaluate_every": 50}
    with pytest.raises(TrainingError) as error:
        medic.train(dataset=mini, method="medic", inner_lr=1e6, output=tmp_path, **settings)
    assert str(error.value).endswith("is kept; lower --inner-lr below 1e+06 or omit it")


@pytest.mark.parametrize(("settings", "hint"), [
    ({"method": "medic"}, "lower --lr below 0.06 or --inner-lr below 0.01"),
    ({"method": "medic", "lr": 2, "inner_lr": 3}, "lower --lr below 2 or --inner-lr below 3, or omit both"),
    ({"method": "erm"}, "lower --lr below 0.06"),
])  # fmt: skip
def test_the_rates_to_lower(settings, hint):
    assert lower_rates(resolve({"target": "street", **settings})) == hint


@pytest.mark.parametrize(("settings", "hint"), [
    ({}, "lower --lr below 0.06, add --clip-norm 1, add --warmup N, or raise --iterations"),
    ({"iterations": 100}, "lower --lr below 0.06, add --clip-norm 1, add --warmup N, or raise --iterations"),
    ({"iterations": 99}, "raise --iterations above 99 (default: 1000), lower --lr below 0.06, add --clip-norm 1, "
                          "or add --warmup N"),
])  # fmt: skip
def test_a_short_run_needs_iterations_first(settings, hint):
    assert learning_hint(resolve({"target": "street", "method": "erm", **settings})) == hint


def test_outputs_that_are_not_numbers_stop_the_run(mini, tmp_path):
    """The training loss is finite, but what an evaluation sees is not."""
    settings = {**SHORT, "batch_size": 8, "evaluate_every": 1, "iterations": 30}
    with pytest.raises(TrainingError, match=r"iteration \d+\b.*checkpoint.*iteration \d+"):
        medic.train(dataset=mini, method="erm", lr=1e6, output=str(tmp_path), **settings)


def test_weights_that_are_not_numbers_are_not_saved(mini, tmp_path, monkeypatch):
    """A weight that no output depends on any more: neither a loss nor an evaluation sees it."""
    step = Trainer.step

    def spoiled(trainer):
        if trainer.iteration == 1:
            trainer.model.register_buffer("unused", torch.tensor(float("nan")))
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", spoiled)
    for evaluate, checkpoint in ((3, 1), (2, 3)):  # seen at a checkpoint, and at an evaluation
        settings = {**SHORT, "iterations": 3, "evaluate_every": evaluate, "checkpoint_every": checkpoint}
        with pytest.raises(TrainingError, match=r"iteration 2; the checkpoint from iteration [01]\b"):
            medic.train(dataset=mini, method="erm", output=str(tmp_path), **settings)
    assert not list(tmp_path.glob("*/results.jsonl"))


def test_an_output_that_cannot_be_written(mini, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MedicError, match=naming(f"output {tmp_path / 'file'} Not a directory")):
        medic.train(dataset=mini, method="erm", output=str(tmp_path / "file"), **SHORT)


def test_nothing_is_written_for_a_mistake(mini, tmp_path):
    mistakes = (
        {"backbone": "resnet5O"},
        {"backbone": "mnist-cnn"},
        {"backbone": "test_vit", "image_size": 100},
        {"weights": __file__},
        {"class_groups": 7},
        {"lr": 0.0},
        {"score": "energy", "threshold": "fixed"},
        {"known": list("0123456789"), "threshold": "oracle-10"},
        {"method": "erm", "backbone": "resnet10t", "batch_size": 1},
        {"method": "groupdro", "backbone": "resnet10t", "batch_size": 1},
    )
    for mistake in mistakes:
        with pytest.raises(MedicError):
            medic.train(**{"dataset": mini, "method": "medic++", "output": str(tmp_path / "out"), **SHORT, **mistake})
    assert not (tmp_path / "out").exists()


def test_unknown_settings_are_named():
    with pytest.raises(MedicError, match=naming("'iteration' 'iterations'")):
        medic.train(target="street", iteration=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer": "mixstyle", "backbone": "mnist-cnn"}, "stages"),
        ({"layer": "aloft-e"}, "ALOFT gfnet_h_ti"),
        ({"method": "ebil-hads", "backbone": "gfnet_h_ti"}, "stages"),
        ({"method": "aloft-e", "image_size": 50}, "--image-size 64"),
        ({"backbone": "test_vit", "image_size": 100}, "'test_vit' 100 16 --image-size 96"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_before_images_are_read(mini, tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr("medic.runs.train.load_images", lambda *_: pytest.fail("images were read"))
    with pytest.raises(MedicError, match=naming(message)):
        medic.train(dataset=mini, output=tmp_path, **{**SHORT, "method": "erm", **settings})
