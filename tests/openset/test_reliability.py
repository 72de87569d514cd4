"""Calibration and risk, against torchmetrics, scikit-learn and hand-made curves."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from medic.errors import MedicError
from medic.models import _torchvision
from medic.openset import Platt, aurc, brier, conf_bcls, ece, nll, reliability_diagram, risk_coverage
from medic.utils.outputs import Output
from tests.messages import naming

_torchvision.ensure()

from torchmetrics.functional.classification import multiclass_calibration_error  # noqa: E402, as it needs torchvision


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    softmax = (3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)).softmax(1)
    label = torch.randint(4, (500,), generator=generator)
    return softmax, label


@pytest.mark.parametrize("bins", [5, 15])
def test_calibration_error_equals_torchmetrics(drawn, bins):
    softmax, label = drawn
    top, predicted = softmax.max(1)
    theirs = multiclass_calibration_error(softmax, label, num_classes=4, n_bins=bins, norm="l1")
    assert ece(top, predicted == label, bins) == pytest.approx(float(theirs), abs=1e-6)


def test_brier_score_equals_scikit_learn(drawn):
    softmax, label = drawn
    top, predicted = softmax.max(1)
    correct = predicted == label
    assert brier(top, correct) == pytest.approx(brier_score_loss(correct, top), abs=1e-12)


def test_negative_log_likelihood_equals_scikit_learn(drawn):
    softmax, label = drawn
    top, predicted = softmax.max(1)
    correct = predicted == label
    assert nll(top.logit(), correct) == pytest.approx(log_loss(correct, top), abs=1e-12)
    assert nll([800.0], [False]) == 800  # log(1 − p), where p rounds to 1


def test_a_diagram():
    images, probability, accuracy = reliability_diagram([0.05, 0.15, 0.15, 1.0], [0, 1, 0, 1], bins=10)
    assert images.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(probability[[0, 1, 9]], [0.05, 0.15, 1])
    np.testing.assert_allclose(accuracy[[0, 1, 9]], [0, 0.5, 1])
    assert ece([0.05, 0.15, 0.15, 1.0], [0, 1, 0, 1], bins=10) == pytest.approx((0.05 + 2 * 0.35) / 4)


def test_a_risk_coverage_curve():
    coverage, risk = risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert aurc([0.9, 0.8, 0.7, 0.6], [True, False, True, False]) == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_ties_are_taken_in_random_order():
    generator = np.random.default_rng(0)
    confidence, correct = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False, True])
    drawn = []
    for _ in range(4000):
        order = np.lexsort((generator.random(5), -confidence))
        drawn.append((~correct[order]).cumsum() / np.arange(1, 6))
    np.testing.assert_allclose(risk_coverage(confidence, correct).risk, np.mean(drawn, 0), atol=0.02)


def test_platt_scaling_equals_scikit_learn():
    """With Platt's targets, which weigh every image as both right and wrong."""
    generator = torch.Generator().manual_seed(0)
    logits, label = torch.randn(300, 4, generator=generator), torch.randint(4, (300,), generator=generator)
    logits[torch.arange(300), label] += 2
    ova = torch.stack((torch.zeros(300, 4), 3 * logits - 4), dim=1)
    fitted = Platt.fit(Output(logits, ova), label)
    odds, correct = conf_bcls(Output(logits, ova)).numpy(), (logits.argmax(1) == label).numpy()
    hits = correct.sum()
    target = np.where(correct, (hits + 1) / (hits + 2), 1 / (300 - hits + 2))
    both = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        np.tile(odds, 2)[:, None], np.repeat([1, 0], 300), np.concatenate([target, 1 - target])
    )
    assert float(fitted.scale) == pytest.approx(both.coef_[0, 0], rel=1e-4)
    assert float(fitted.shift) == pytest.approx(both.intercept_[0], rel=1e-4)
    assert ece(fitted(Output(logits, ova)).sigmoid(), correct) < ece(1 / (1 + np.exp(-odds)), correct)


def test_platt_scaling_of_perfect_predictions_is_finite():
    logits = torch.eye(4).repeat(5, 1)
    output = Output(logits, torch.stack((-logits, logits), 1))
    fitted = Platt.fit(output, logits.argmax(1))
    assert float(fitted.scale) == 1
    assert fitted(output).isfinite().all()


def test_platt_scaling_keeps_the_order_of_images():
    """Odds that say nothing, or the contrary, must not turn the order round."""
    generator = torch.Generator().manual_seed(0)
    logits, label = torch.randn(200, 3, generator=generator), torch.randint(3, (200,), generator=generator)
    logits[torch.arange(200), label] += 3
    wrong = logits.argmax(1) != label
    odds = torch.where(wrong, 5.0, -1.0)[:, None].expand(200, 3)
    output = Output(logits, torch.stack((torch.zeros(200, 3), odds + 0.1 * logits), 1))
    assert float(Platt.fit(output, label).scale) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ece([1.5], [True]), "probabilities between 0 and 1"),
        (lambda: aurc([], []), "one image got none"),
        (lambda: aurc([0.5], [True, False]), "confidence (1,) correct (2,)"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(MedicError, match=naming(message)):
        call()
