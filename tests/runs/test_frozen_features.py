"""Heads on frozen features: scaled, of several views, and of a few images."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import medic
from medic.errors import MedicError
from medic.models.classifier import Scaling
from medic.runs.data import divide_images, load_images
from medic.runs.reevaluate import recompute_outputs
from tests.built import built, plan_of
from tests.messages import naming

SHORT = {
    "target": "street", "iterations": 4, "batch_size": 4, "tune": "head", "device": "cpu", "track": "none",
    "quiet": True, "trial_seed": 0,
}  # fmt: skip


def test_scaled_features_have_mean_0_and_mean_variance_1():
    features = torch.randn(100, 3, dtype=torch.float64) * torch.tensor([2.0, 1e-3, 0.0]) + 5
    layer = Scaling(3).double()
    assert torch.equal(layer(features), features)
    layer.fit(features)
    made = layer(features).numpy()
    np.testing.assert_allclose(made.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(made.var(0).mean(), 1)
    np.testing.assert_allclose(made.std(0) / made.std(0)[0], features.numpy().std(0) / features.numpy().std(0)[0])


def test_the_head_reads_scaled_features_of_the_training_images(mini):
    trainer = built(dataset=mini, **{name: SHORT[name] for name in ("target", "tune", "batch_size")})
    features = trainer.images.gather(trainer.samples.indices, trainer.device)
    read = trainer.model(features).features
    torch.testing.assert_close(read.mean(0), torch.zeros(read.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(read.var(0, correction=0).mean(), torch.ones(()))


def test_a_head_by_itself_reads_the_features_of_an_output(mini):
    """They are scaled already."""
    trainer = built(dataset=mini, **{name: SHORT[name] for name in ("target", "tune", "batch_size")})
    inputs = trainer.images.gather(trainer.samples.indices[:8], trainer.device)
    output = trainer.model(inputs)
    torch.testing.assert_close(trainer.model.classify(output.features).logits, output.logits)


@pytest.mark.parametrize("views", [1, 3])
def test_the_written_model_computes_the_same_from_images(mini, tmp_path, views):
    run = medic.train(dataset=mini, **SHORT, train_views=views, output=str(tmp_path))
    assert run.description["model"]["scaled"] is True
    assert {"scaling.mean", "scaling.deviation"} <= load_file(run.path / "model.safetensors").keys()
    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits, rtol=0, atol=1e-5)


def test_views_serve_training_alone(mini):
    trainers = [
        built(dataset=mini, target="street", tune="head", batch_size=4, train_views=views, **changes)
        for views, changes in ((1, {}), (4, {"augment": "digits"}))
    ]
    plain, varied = trainers
    count = plain.images.shape[0]
    assert varied.images.shape[0] == 4 * count
    rows = torch.arange(count)
    pixels = [trainer.images.gather(rows, trainer.device) for trainer in trainers]
    assert torch.equal(*pixels)
    other = varied.images.gather(rows + count, varied.device)
    assert not torch.equal(pixels[0], other)
    drawn = varied.images.draw_views(rows, torch.Generator().manual_seed(0))
    assert torch.equal(drawn % count, rows)
    assert set((drawn // count).tolist()) == {0, 1, 2, 3}
    assert torch.equal(plain.images.draw_views(rows, torch.Generator()), rows)


@pytest.mark.parametrize("shots", [1, 3])
def test_shots_are_drawn_from_every_class_and_domain(mini, shots):
    plans = [plan_of(dataset=mini, target="street", seed=seed, **extra)
             for seed, extra in ((0, {}), (0, {"shots": shots}), (1, {"shots": shots}))]  # fmt: skip
    whole, few, other = (divide_images(plan, load_images(plan, torch.device("cpu"))) for plan in plans)
    cells = list(zip(few.train.domain.tolist(), few.train.label.tolist(), strict=True))
    assert {cells.count(cell) for cell in cells} == {shots}
    assert set(cells) == set(zip(whole.train.domain.tolist(), whole.train.label.tolist(), strict=True))
    assert set(few.train.indices.tolist()) < set(whole.train.indices.tolist())
    assert set(few.validation.indices.tolist()) <= set(whole.validation.indices.tolist())
    assert torch.equal(few.target.indices, whole.target.indices)
    assert few.train.indices.tolist() != other.train.indices.tolist()


def test_every_score_is_measured(mini, tmp_path):
    run = medic.train(dataset=mini, **SHORT, all_scores=True, output=str(tmp_path))
    assert {"oscr/knn", "oscr/mahalanobis", "oscr/openmax", "oscr/cls", "oscr/energy"} <= run.metrics.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_views": 2}, "train_views 2 --tune head --train-views"),
        ({"tune": "head", "augment": "digits"}, "augment 'digits' --train-views"),
        ({"shots": 0}, "shots 0"),
        ({"tune": "head", "train_views": 2, "augment": "none"}, "train_views 2 --train-views"),
        ({"tune": "head", "layer_decay": 0.5}, "layer_decay --layer-decay"),
    ],
)
def test_mistakes(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, **settings)


def test_a_score_that_cannot_be_fitted_is_left_out(mini, tmp_path, caplog):
    """Six images have no covariance of all features."""
    settings = {**SHORT, "sources": ["printed"], "shots": 1, "method": "erm"}
    run = medic.train(dataset=mini, **settings, all_scores=True, output=str(tmp_path))
    assert "oscr/energy" in run.metrics
    skipped = {re.search(r"skipping score (\S+):", line)[1] for line in caplog.messages if "skipping score" in line}
    assert skipped == {"mahalanobis", "rmds"}
    assert not {f"oscr/{name}" for name in skipped} & run.metrics.keys()
