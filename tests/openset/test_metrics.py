import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medic import openset
from medic.errors import MedicError
from medic.openset.metrics import Outcomes

# Few distinct confidences, so that ties within and between the sides are common.
sample = st.tuples(st.integers(-4, 4), st.integers(0, 2), st.integers(-1, 2))


@st.composite
def triples(draw):
    """Confidences (whole numbers), predictions and labels with at least one known and one unknown sample."""
    known = draw(st.tuples(st.integers(-4, 4), st.integers(0, 2), st.integers(0, 2)))
    unknown = draw(st.tuples(st.integers(-4, 4), st.integers(0, 2), st.just(-1)))
    rows = draw(st.permutations([known, unknown, *draw(st.lists(sample, max_size=25))]))
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))


def sides(confidence, prediction, label):
    known = label >= 0
    return confidence[known], (prediction == label)[known], confidence[~known]


def double_sum(known, weight, unknown):
    pairs = (known[:, None] > unknown).double() + 0.5 * (known[:, None] == unknown)
    return float((pairs * weight[:, None]).mean())


@given(triples())
def test_oscr_is_the_double_sum_over_pairs(samples):
    known, correct, unknown = sides(*samples)
    assert openset.oscr(*samples) == pytest.approx(double_sum(known, correct, unknown), abs=1e-14)


@given(triples())
def test_auroc_is_the_double_sum_over_pairs(samples):
    known, correct, unknown = sides(*samples)
    expected = double_sum(known, torch.ones_like(correct), unknown)
    assert openset.auroc(*samples) == pytest.approx(expected, abs=1e-14)


@given(triples())
def test_oscr_is_at_most_accuracy_and_at_most_auroc(samples):
    value = openset.oscr(*samples)
    assert 0 <= value <= openset.acc(*samples)
    assert value <= openset.auroc(*samples)


@given(triples())
def test_oscr_is_auroc_where_every_prediction_is_right(samples):
    confidence, _, label = samples
    assert openset.oscr(confidence, label.clamp(min=0), label) == openset.auroc(*samples)


@given(triples())
def test_the_curve_climbs_from_nothing_to_accuracy_and_its_area_is_oscr(samples):
    fpr, ccr = openset.oscr_curve(*samples)
    assert (float(fpr[0]), float(ccr[0])) == (0, 0)
    assert (float(fpr[-1]), float(ccr[-1])) == (1, openset.acc(*samples))
    assert bool((fpr.diff() >= 0).all())
    assert bool((ccr.diff() >= 0).all())
    assert len(fpr) == len(samples[0].unique()) + 1
    assert float(torch.trapezoid(ccr, fpr)) == pytest.approx(openset.oscr(*samples), abs=1e-14)


# Only correctly rounded operations: a vectorized exp may give equal arguments different values.
INCREASING = [lambda x: x * x * x, lambda x: 3 * x - 7, lambda x: x / 7, lambda x: torch.where(x > 3, torch.inf, x)]


@given(triples(), st.sampled_from(INCREASING))
def test_nothing_changes_under_an_increasing_transform(samples, transform):
    confidence, prediction, label = samples
    assert openset.evaluate(transform(confidence.double()), prediction, label) == openset.evaluate(*samples)


@given(triples(), st.randoms(use_true_random=False))
def test_nothing_changes_under_a_permutation(samples, random):
    order = list(range(len(samples[0])))
    random.shuffle(order)
    assert openset.evaluate(*(column[order] for column in samples)) == openset.evaluate(*samples)


@given(triples())
def test_auroc_of_the_negated_confidence_is_the_complement(samples):
    confidence, prediction, label = samples
    assert openset.auroc(-confidence, prediction, label) == pytest.approx(1 - openset.auroc(*samples), abs=1e-15)


@given(triples(), st.sampled_from(["trapezoid", "step"]))
def test_swapping_the_sides_swaps_the_positive_side(samples, interpolation):
    confidence, _, label = samples
    swapped = (-confidence, torch.zeros_like(label), torch.where(label < 0, 0, -1))
    options = {"interpolation": interpolation}
    assert openset.aupr(*swapped, positive="known", **options) == openset.aupr(*samples, positive="unknown", **options)
    assert openset.fpr_at_tpr(*swapped, positive="known") == openset.fpr_at_tpr(*samples, positive="unknown")


@given(triples())
def test_evaluate_is_every_metric_by_name(samples):
    assert (
        openset.evaluate(*samples).items()
        >= {
            "acc": openset.acc(*samples),
            "oscr": openset.oscr(*samples),
            "auroc": openset.auroc(*samples),
            "aupr_in": openset.aupr(*samples, positive="known"),
            "aupr_out": openset.aupr(*samples, positive="unknown"),
            "fpr95": openset.fpr95(*samples),
            "ccr@fpr=0.01": openset.ccr_at_fpr(*samples, 0.01),
            "ccr@fpr=0.1": openset.ccr_at_fpr(*samples, 0.1),
        }.items()
    )


@given(triples())
def test_a_ranking_serves_for_every_metric(samples):
    ranking = openset.rank(*samples)
    assert openset.rank(ranking) is ranking
    assert openset.evaluate(ranking) == openset.evaluate(*samples)
    assert all(
        torch.equal(a, b) for a, b in zip(openset.oscr_curve(ranking), openset.oscr_curve(*samples), strict=True)
    )


@given(triples(), st.lists(st.integers(-5, 5), min_size=1, max_size=4))
def test_several_thresholds_at_once_give_the_same_hscores(samples, thresholds):
    confidence, prediction, label = samples
    hscores = Outcomes.of(prediction, label).hscores(confidence.double(), thresholds)
    assert hscores == [openset.hscore(*samples, threshold) for threshold in thresholds]


@given(triples(), st.integers(-5, 5), st.booleans())
def test_hscore_lies_between_its_parts(samples, threshold, per_class):
    h, acc_k, acc_u = openset.hscore(*samples, threshold, per_class=per_class)
    assert 0 <= acc_k <= 1
    assert 0 <= acc_u <= 1
    assert min(acc_k, acc_u) - 1e-15 <= h <= max(acc_k, acc_u) + 1e-15
    assert (h == 0) == (acc_k == 0 or acc_u == 0)


@given(triples(), st.integers(-5, 5))
def test_hscore_counts_known_from_the_threshold_on(samples, threshold):
    confidence, prediction, label = (column.tolist() for column in samples)
    rows = list(zip(confidence, prediction, label, strict=True))
    known = [conf >= threshold and pred == true for conf, pred, true in rows if true >= 0]
    unknown = [conf < threshold for conf, _, true in rows if true < 0]
    result = openset.hscore(*samples, threshold)
    assert (result.acc_k, result.acc_u) == (sum(known) / len(known), sum(unknown) / len(unknown))


def test_hscore_at_a_confidence_accepts_it():
    assert openset.hscore([0.5, 0.4], [0, 0], [0, -1], 0.5) == (1, 1, 1)
    assert openset.hscore([0.5, 0.5], [0, 0], [0, -1], 0.5) == (0, 1, 0)


def test_hscore_is_zero_where_both_parts_are():
    assert openset.hscore([0.1, 0.9], [0, 0], [0, -1], 0.5) == (0, 0, 0)


def test_hscore_per_class_is_the_mean_over_the_classes_there_are():
    # Class 0: 3 of 4; class 5: 0 of 1; 1 to 4 have no sample. Unknown: 1 of 2.
    prediction, label = [0, 0, 0, -1, 0, -1, 3], [0, 0, 0, 0, 5, -1, -1]
    assert openset.hard_hscore(prediction, label) == pytest.approx((6 / 11, 3 / 5, 1 / 2))
    assert openset.hard_hscore(prediction, label, per_class=True) == pytest.approx((3 / 7, 3 / 8, 1 / 2))
    assert openset.hscore([1.0] * 7, prediction, label, 0.0, per_class=True).acc_k == 3 / 8


def test_decide_leaves_a_rejected_sample_without_a_class():
    assert openset.decide([0.1, 0.5, 0.9, 0.9], [4, 3, 2, -1], 0.5).tolist() == [-1, 3, 2, -1]


def test_a_rejected_known_sample_is_wrong_for_oscr_and_accuracy():
    assert openset.acc([1.0, 2.0, 0.0], [-1, 1, 0], [1, 1, -1]) == 0.5
    assert openset.oscr([1.0, 2.0, 0.0], [-1, 1, -1], [1, 1, -1]) == 0.5


def test_accuracy_needs_no_unknown_sample():
    assert openset.acc([1.0, 2.0], [0, 0], [0, 1]) == 0.5


def test_rates_that_are_exact_shares_are_reached():
    # 19 of 20 is 95 %, and the 7th of 100 is at 7 %, although 0.07 · 100 is above 7 in floating point.
    confidence, label = torch.arange(40.0), torch.tensor([-1] * 20 + [0] * 20)
    confidence[19] = 100.0
    assert openset.fpr95(confidence, torch.zeros_like(label), label) == 0
    confidence, label = torch.arange(200).flip(0), torch.tensor([-1, 0] * 100)
    assert openset.ccr_at_fpr(confidence, torch.zeros_like(label), label, 0.07) == 6 / 100


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_lists_arrays_and_tensors_serve(kind):
    samples = [0.9, 0.8, 0.4, 0.7, 0.3], [0, 0, 0, 0, 0], [0, 1, 0, -1, -1]
    assert openset.oscr(*map(kind, samples)) == 0.5


def test_infinite_confidences_are_ranked():
    assert openset.oscr([torch.inf, torch.inf, 0.0, -torch.inf], [0] * 4, [0, -1, 0, -1]) == 0.625


def test_confidences_that_differ_only_in_float64_are_not_tied():
    confidence = torch.tensor([1 + 1e-12, 1], dtype=torch.float64)
    assert openset.auroc(confidence, [0, 0], [0, -1]) == 1


def test_metrics_need_no_gradient():
    confidence = torch.tensor([0.9, 0.1], requires_grad=True)
    assert openset.oscr(confidence, [0, 0], [0, -1]) == 1
    assert not openset.balance(torch.zeros(2, 2, 2, requires_grad=True), [0, 1]).requires_grad


def test_balance_of_a_classifier_without_samples_of_a_side_is_nan():
    assert openset.balance(torch.zeros(2, 2, 3), [0, 1]).isnan().tolist() == [False, False, True]


SAMPLES = ([0.9, 0.8, 0.3], [0, 0, 0], [0, 1, -1])
OVA = torch.zeros(3, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: openset.oscr([0.9, float("nan"), float("nan")], *SAMPLES[1:]), "2 of 3 confidences are NaN"),
        (lambda: openset.oscr([0.9, 0.8], *SAMPLES[1:]), r"confidence \(2,\), prediction \(3,\), label \(3,\)"),
        (lambda: openset.oscr([[0.9, 0.8, 0.3]], *SAMPLES[1:]), r"confidence \(1, 3\)"),
        (lambda: openset.oscr(*SAMPLES[:2], [0, -2, -1]), "label -2"),
        (lambda: openset.oscr(SAMPLES[0], [0, -7, 0], SAMPLES[2]), "prediction -7"),
        (lambda: openset.oscr(*SAMPLES[:2], [0.0, 1.0, -1.0]), "label must be integers.*torch.float"),
        (lambda: openset.oscr(*SAMPLES[:2], [-1, -1, -1]), "no known samples among 3"),
        (lambda: openset.oscr(*SAMPLES[:2], [0, 0, 1]), "no unknown samples among 3"),
        (lambda: openset.acc([], [], []), "no known samples among 0"),
        (lambda: openset.oscr(SAMPLES[0]), "pass confidence, prediction, label"),
        (lambda: openset.aupr(*SAMPLES, positive="unkown"), "'unkown': did you mean 'unknown'"),
        (lambda: openset.aupr(*SAMPLES, interpolation="spline"), "interpolation 'spline'"),
        (lambda: openset.fpr_at_tpr(*SAMPLES, 95), "tpr of fpr_at_tpr .* 1, got 95"),
        (lambda: openset.ccr_at_fpr(*SAMPLES, 0.0), "fpr of ccr_at_fpr .* above 0 .*, got 0"),
        (lambda: openset.hscore(*SAMPLES, float("nan")), "threshold must be a number, got NaN"),
        (lambda: openset.hscore(SAMPLES[0], [0, 0], SAMPLES[2], 0.5), r"confidence \(3,\), prediction \(2,\)"),
        (lambda: openset.hard_hscore([0, -1], SAMPLES[2]), r"prediction \(2,\), label \(3,\)"),
        (lambda: openset.hard_hscore([0, 1, 1], [0, 1, 1]), "no unknown samples among 3"),
        (lambda: openset.conf_p(OVA, [-1, -1, -1]), "no known samples among 3"),
        (lambda: openset.conf_p(OVA, [0, 1, 2]), "label 2 is too large: labels must be below 2"),
        (lambda: openset.conf_p(OVA, [0, 1]), r"label \(2,\)"),
        (lambda: openset.conf_n(OVA, [0, 1, 1], others="worst"), "'worst'"),
        (lambda: openset.conf_n(OVA[:, :, :1], [0, 0, 0]), "at least two classes"),
        (lambda: openset.balance(OVA[0], [0, 1]), r"\(2, 2\)"),
    ],
)
def test_mistakes_are_named_in_one_line(call, message):
    with pytest.raises(MedicError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
