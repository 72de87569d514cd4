"""Open set scores, metrics and thresholds against hand-computed reference numbers and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from medic import openset
from medic.utils.outputs import Output

# Four known samples, the second of them misclassified, and three unknown ones.
CONFIDENCE = torch.tensor([0.9, 0.8, 0.6, 0.4, 0.7, 0.5, 0.3], dtype=torch.float64)
LABEL = torch.tensor([0, 1, 0, 0, -1, -1, -1])
PREDICTION = torch.zeros(7, dtype=torch.int64)
SAMPLES = (CONFIDENCE, PREDICTION, LABEL)
EXACT = {"rel": 1e-14, "abs": 1e-14}
PRINTED = {"abs": 5e-7}  # half a unit of the last digit of the reference numbers


def cls_output(probability):
    """Six close-set logits with argmax 0 and the given largest softmax probabilities."""
    rest = ((1 - probability) / 5).unsqueeze(1).expand(-1, 5)
    return Output(torch.cat([probability.unsqueeze(1), rest], dim=1).log())


def bcls_output(probability, other=1e-9):
    """Two classes, argmax 0, with q_0 as given and q_1 = `other`."""
    q = torch.stack([probability, torch.full_like(probability, other)], dim=1)
    logits = torch.tensor([[1.0, 0.0]]).expand(len(probability), -1)
    return Output(logits, torch.stack([(1 - q).log(), q.log()], dim=1))


def test_closed_set_accuracy():
    assert openset.acc(*SAMPLES) == 0.75


def test_oscr():
    assert openset.oscr(*SAMPLES) == 0.5


def test_oscr_of_the_walk_down_the_ranking():
    # CCR steps of 1/3 at .9 and .4, FPR steps of 1/2 at .7 and .3: 1/2 · 1/3 + 1/2 · 2/3.
    assert openset.oscr([0.9, 0.8, 0.4, 0.7, 0.3], [0, 0, 0, 0, 0], [0, 1, 0, -1, -1]) == 0.5


def test_oscr_curve():
    fpr, ccr = openset.oscr_curve(*SAMPLES)
    assert (fpr * 3).tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert (ccr * 4).tolist() == [0, 1, 1, 1, 2, 2, 3, 3]
    assert float(torch.trapezoid(ccr, fpr)) == pytest.approx(0.5, **EXACT)


def test_perfect_ranking():
    samples = ([0.9, 0.8, 0.7, 0.6, 0.3, 0.2, 0.1], [0] * 7, [0] * 4 + [-1] * 3)
    assert openset.oscr(*samples) == 1
    assert (
        openset.evaluate(*samples).items()
        >= {
            "acc": 1,
            "oscr": 1,
            "auroc": 1,
            "aupr_in": 1,
            "aupr_out": 1,
            "fpr95": 0,
            "ccr@fpr=0.01": 1,
            "ccr@fpr=0.1": 1,
        }.items()
    )


def test_all_confidences_equal():
    samples = ([0.5] * 7, [0] * 7, [0] * 4 + [-1] * 3)
    assert openset.oscr(*samples) == 0.5
    assert openset.auroc(*samples) == 0.5
    assert openset.fpr95(*samples) == 1
    assert openset.ccr_at_fpr(*samples, 0.5) == 0


def test_auroc():
    assert openset.auroc(*SAMPLES) == 0.75


def test_fpr95_of_both_sides():
    assert openset.fpr95(*SAMPLES) == 1 / 2
    assert openset.fpr_at_tpr(*SAMPLES, 0.95, positive="unknown") == 1 / 2
    assert openset.fpr_at_tpr(*SAMPLES, 0.95, positive="known") == 2 / 3


@pytest.mark.parametrize(
    ("positive", "interpolation", "expected"),
    [
        ("known", "trapezoid", 0.835417),
        ("known", "step", 0.854167),
        ("unknown", "trapezoid", 0.711111),
        ("unknown", "step", 0.755556),
    ],
)
def test_aupr(positive, interpolation, expected):
    value = openset.aupr(*SAMPLES, positive=positive, interpolation=interpolation)
    assert value == pytest.approx(expected, **PRINTED)


@pytest.mark.parametrize(
    ("fpr", "expected"),
    [(0.01, 1 / 4), (1 / 3, 1 / 4), (0.34, 2 / 4), (2 / 3, 2 / 4), (0.7, 3 / 4), (1.0, 3 / 4)],
)
def test_ccr_at_fpr(fpr, expected):
    # The ⌈3·fpr⌉-th largest of the unknown confidences .7, .5, .3, and the correct ones of .9, .6, .4 above it.
    assert openset.ccr_at_fpr(*SAMPLES, fpr) == expected


@pytest.mark.parametrize(("name", "output"), [("cls", cls_output(CONFIDENCE)), ("bcls", bcls_output(CONFIDENCE))])
def test_oracle_of_ten_thresholds(name, output):
    chosen = openset.threshold("oracle-10", name, target=output, label=LABEL)
    assert chosen.probability == pytest.approx(0.3 + 0.6 * 4 / 9, **EXACT)
    assert chosen.probability == pytest.approx(0.566667, **PRINTED)
    assert chosen.value == pytest.approx(np.log(chosen.probability / (1 - chosen.probability)), rel=1e-12)
    result = openset.hscore(openset.score(name, output), PREDICTION, LABEL, chosen.value)
    assert result == pytest.approx((4 / 7, 1 / 2, 2 / 3), **EXACT)


def test_oracle_spans_the_largest_one_vs_all_probability_of_any_class():
    # q_1 = .75 everywhere lifts the lower end of the grid from .3 to .75, above where the best threshold was.
    chosen = openset.threshold("oracle-10", "bcls", target=bcls_output(CONFIDENCE, 0.75), label=LABEL)
    assert chosen.probability == pytest.approx(0.75, **EXACT)
    assert openset.hscore(CONFIDENCE, PREDICTION, LABEL, chosen.probability) == pytest.approx((2 / 5, 1 / 4, 1))


def test_confidences_are_the_papers():
    logits = torch.tensor([[2.0, 0.5, -1.0], [-3.0, 0.0, 1.0]], dtype=torch.float64)
    ova = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 5.0, 9.0]], [[1.0, 0.0, 4.0], [7.0, 1.0, 2.0]]], dtype=torch.float64)
    output = Output(logits, ova)
    torch.testing.assert_close(openset.conf_cls(output).sigmoid(), logits.softmax(1).amax(1))
    # The close-set predictions are 0 and 2, although other one-vs-all classifiers are surer.
    assert openset.conf_bcls(output).tolist() == [3.0, -2.0]
    assert openset.max_logit(output).tolist() == [2.0, 1.0]
    torch.testing.assert_close(openset.energy(output), logits.exp().sum(1).log())


# q_k of four known samples of classes 0, 0, 1, 2 and of an unknown one that must not count.
Q = torch.tensor(
    [[0.9, 0.2, 0.4], [0.5, 0.1, 0.3], [0.3, 0.6, 0.1], [0.2, 0.4, 0.8], [0.99, 0.99, 0.99]], dtype=torch.float64
)
OVA = torch.stack([(1 - Q).log(), Q.log()], dim=1)
OVA_LABEL = [0, 0, 1, 2, -1]


def test_conf_p():
    assert openset.conf_p(OVA, OVA_LABEL) == pytest.approx((0.9 + 0.5 + 0.6 + 0.8) / 4, **EXACT)


def test_conf_n():
    assert openset.conf_n(OVA, OVA_LABEL) == pytest.approx((0.7 + 0.8 + 0.8 + 0.7) / 4, **EXACT)
    assert openset.conf_n(OVA, OVA_LABEL, others="hardest") == pytest.approx((0.6 + 0.7 + 0.7 + 0.6) / 4, **EXACT)


def test_balance():
    expected = [0.7 + 0.25 - 1, 0.6 + 0.7 / 3 - 1, 0.8 + 0.8 / 3 - 1]
    assert openset.balance(OVA, OVA_LABEL).tolist() == pytest.approx(expected, **EXACT)


def test_balance_of_one_class_pair():
    # Positives at .7 and negatives at .2 lean to "no" by .1; .8 and .2 are balanced.
    for positive, expected in ((0.7, -0.1), (0.8, 0.0)):
        q = torch.tensor([[positive, 0.5], [0.2, 0.5]], dtype=torch.float64)
        ova = torch.stack([torch.zeros_like(q), q.logit()], dim=1)
        assert float(openset.balance(ova, [0, 1])[0]) == pytest.approx(expected, **EXACT)


@pytest.fixture(params=["without ties", "with ties"])
def drawn(request):
    rng = np.random.default_rng(7)
    label = rng.integers(-1, 5, 400)
    prediction = np.where(rng.random(400) < 0.7, label.clip(0), rng.integers(0, 5, 400))
    confidence = rng.normal(size=400) + (label >= 0)
    return confidence.round(1) if request.param == "with ties" else confidence, prediction, label


def test_auroc_is_that_of_scikit_learn(drawn):
    confidence, _, label = drawn
    assert openset.auroc(*drawn) == pytest.approx(roc_auc_score(label >= 0, confidence), **EXACT)


@pytest.mark.parametrize("positive", ["known", "unknown"])
def test_aupr_is_that_of_scikit_learn(drawn, positive):
    confidence, _, label = drawn
    truth, value = (label >= 0, confidence) if positive == "known" else (label < 0, -confidence)
    precision, recall, _ = precision_recall_curve(truth, value)
    assert openset.aupr(*drawn, positive=positive) == pytest.approx(auc(recall, precision), **EXACT)
    step = openset.aupr(*drawn, positive=positive, interpolation="step")
    assert step == pytest.approx(average_precision_score(truth, value), **EXACT)


@pytest.mark.parametrize("tpr", [0.3, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("positive", ["known", "unknown"])
def test_fpr_at_tpr_is_that_of_scikit_learn(drawn, positive, tpr):
    confidence, _, label = drawn
    truth, value = (label >= 0, confidence) if positive == "known" else (label < 0, -confidence)
    false, true, _ = roc_curve(truth, value, drop_intermediate=False)
    assert openset.fpr_at_tpr(*drawn, tpr, positive=positive) == pytest.approx(false[np.argmax(true >= tpr)], **EXACT)


@pytest.mark.parametrize("fpr", [0.01, 0.1, 0.5, 1.0])
def test_ccr_at_fpr_is_its_definition(drawn, fpr):
    confidence, prediction, label = drawn
    known, unknown = label >= 0, np.sort(confidence[label < 0])
    accepted = confidence > unknown[-int(np.ceil(fpr * len(unknown)))]
    expected = (accepted & (prediction == label))[known].mean()
    assert openset.ccr_at_fpr(*drawn, fpr) == pytest.approx(expected, **EXACT)
