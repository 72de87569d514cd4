"""Scores equal those of pytorch-ood, whose outlier scores have the opposite sign."""

import pytest
import torch
from torch import nn

from benchmarks.against_pytorch_ood import THEIRS, detector, in_double_precision
from medic.openset import SCORES
from medic.openset.gaussians import RelativeMahalanobis
from medic.openset.posteriors import Temperature, fit_scale
from medic.utils.outputs import LinearHead, Output

CLASSES, FEATURES = 5, 24


@pytest.fixture(autouse=True)
def exactly():
    with in_double_precision():
        yield


@pytest.fixture
def data():
    """Features like those of a trained network, non-negative, with their linear head: to fit on, and to score."""
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, CLASSES)
    label = torch.randint(CLASSES, (400,))
    features = (torch.randn(400, FEATURES) + 2 * head.weight.detach()[label] * FEATURES**0.5).relu()
    other = torch.randn(60, FEATURES).relu()
    outputs = [Output(head(part).detach(), features=part) for part in (features, other)]
    return head, outputs[0], label, outputs[1]


def fitted(name, data):
    head, train, label, _ = data
    return SCORES[name].fit(train, label, LinearHead(head.weight, head.bias))


def equal(ours, theirs):
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in THEIRS if name not in ("rmds", "temperature")])
def test_equal_scores(data, name):
    head, train, label, other = data
    equal(fitted(name, data)(other), -THEIRS[name](head, train, label, other))


def test_relative_mahalanobis(data):
    """Theirs divides no covariance by the number of samples, which scales the score, and has its own ridge."""
    _, train, label, other = data
    varied = train._replace(features=train.features + torch.randn(train.features.shape))
    theirs = detector.RMD(None).fit_features(varied.features, label)
    ours = RelativeMahalanobis.fit(varied, label, ridge=1e-9)
    equal(ours(other), -len(label) * theirs.predict_features(other.features))


def test_temperature(data):
    _, train, label, other = data
    theirs = detector.TemperatureScaling(None).fit_logits(train.logits, label)
    ours = Temperature(1 / theirs.t.detach())
    equal(ours(other).sigmoid(), -theirs.predict_logits(other.logits))
    loss = [
        float(nn.functional.cross_entropy(train.logits * scale, label))
        for scale in (fitted("temperature", data).function.scale, 1 / theirs.t.detach())
    ]
    assert loss[0] <= loss[1]  # theirs stops early


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
def test_the_temperature_is_the_best_one(scale):
    torch.manual_seed(1)
    logits, label = scale * torch.randn(300, 4, dtype=torch.float64), torch.randint(4, (300,))
    logits[torch.arange(300), label] += scale
    best = fit_scale(logits, label)
    losses = [float(nn.functional.cross_entropy(logits * best * step, label)) for step in (0.999, 1.0, 1.001)]
    assert losses[1] == min(losses)


def test_the_temperature_of_perfect_predictions_is_bounded():
    assert 10 < float(fit_scale(torch.eye(3, dtype=torch.float64), torch.arange(3))) <= 100
