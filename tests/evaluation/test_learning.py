"""Whether a run learned anything, from its records."""

import math

import pytest
import torch

from medic.evaluation.evaluator import LabelledOutputs, measure_validation
from medic.evaluation.learning import at_chance, learning_failure
from medic.utils.outputs import Output


def record(acc=0.25, loss=1.0, cross_entropy=1.4, images=300, chance=0.25, **entries):
    """An evaluation of equally frequent classes, four unless `chance` is 1 / classes."""
    levels = {
        "chance_acc": chance,
        "chance_error": math.sqrt(chance * (1 - chance) / images),
        "chance_loss": math.log(4),
    }
    measured = {"acc": acc, "class_acc": acc, "loss": cross_entropy, "images": images}
    return {"loss": loss, "validation": {**measured, **levels}, **entries}


def old(record):
    """The record as earlier versions wrote it."""
    validation = {key: value for key, value in record["validation"].items() if not key.startswith("chance")}
    return {**record, "validation": validation}


def measured(counts, predicted):
    """Measure predictions of one class for so many images of each class."""
    label = torch.repeat_interleave(torch.tensor(counts))
    logits = torch.nn.functional.one_hot(torch.full_like(label, predicted), max(4, len(counts))).double()
    return measure_validation(LabelledOutputs(Output(logits), label, torch.zeros_like(label)))


@pytest.mark.parametrize(("counts", "acc", "error", "loss"), [
    ([1, 1, 1, 1], 0.25, math.sqrt(0.25 * 0.75 / 4), math.log(4)),
    ([3, 1], 0.5, 0.5 * math.sqrt(0.25 * (1 / 3 + 1)), 2 * math.log(2) - 0.75 * math.log(3)),
    ([0, 2, 2], 0.5, 0.25, math.log(2)),
    ([5], 1.0, 0.0, 0.0),
])  # fmt: skip
def test_chance_levels_come_from_the_classes(counts, acc, error, loss):
    levels = measured(counts, 0)
    assert levels["chance_acc"] == acc
    assert levels["chance_error"] == pytest.approx(error, abs=1e-12)
    assert levels["chance_loss"] == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("counts", [[50, 50], [950, 50], [300, 100, 100, 100]])
def test_constant_predictions_are_at_chance(counts):
    """However frequent their class is."""
    for predicted in range(len(counts)):
        assert at_chance({"validation": measured(counts, predicted)})


def test_classes_count_alike():
    """Of 950 and 50 images 93% and 90% are right: less than the most frequent class alone would give, but learned."""
    label = torch.repeat_interleave(torch.tensor([950, 50]))
    correct = torch.arange(1000) % 100 >= torch.where(label == 0, 7, 10)
    logits = torch.nn.functional.one_hot(torch.where(correct, label, 1 - label), 2).double()
    levels = measure_validation(LabelledOutputs(Output(logits), label, torch.zeros_like(label)))
    assert levels["acc"] < 0.95
    assert levels["class_acc"] == pytest.approx((correct[:950].double().mean() + correct[950:].double().mean()) / 2)
    assert not at_chance({"validation": levels})


def test_the_limit_is_two_standard_errors_above_chance():
    """√(0.25 · 0.75 / 300) = 0.025, so the limit is 0.3."""
    assert at_chance(record(acc=0.2999))
    assert not at_chance(record(acc=0.3001))
    assert not at_chance(record(acc=0.26, images=300_000))


def test_too_few_images_cannot_tell():
    """With four images of two classes, even a perfect accuracy is only two standard errors above chance."""
    assert not at_chance(record(acc=0.5, chance=0.5, images=4))
    assert at_chance(record(acc=0.5, chance=0.5, images=5))
    assert not at_chance(record(acc=1.0, chance=1.0))  # a single class
    assert not learning_failure([record(acc=0.5, chance=0.5, images=4)] * 2, 0)  # its loss never fell


def test_the_selected_record_decides():
    records = [record(), record(acc=0.8), record()]
    assert [bool(learning_failure(records, selected)) for selected in range(3)] == [True, False, True]
    reason = "class-averaged validation accuracy 25.0% is not significantly above chance (25.0%)"
    assert learning_failure(records, 0) == reason


@pytest.mark.parametrize(("losses", "failed"), [
    ([2.0, 2.0, 3.0], True),
    ([2.0, 1.981, 3.0], True),
    ([2.0, 1.979, 3.0], False),
    ([2.0, 3.0, 1.0], False),
    ([-2.0, -2.0], True),
    ([-2.0, -2.03], False),
    ([2.0], False),  # one evaluation says nothing about a trend
])  # fmt: skip
def test_a_loss_that_never_fell_with_a_cross_entropy_above_chance(losses, failed):
    records = [record(acc=0.4, loss=loss) for loss in losses]
    assert bool(learning_failure(records, 0)) == failed
    better = [record(acc=0.4, loss=loss, cross_entropy=1.3) for loss in losses]
    assert not learning_failure(better, 0)


def test_a_high_accuracy_counts_whatever_the_scale_of_the_logits():
    """Halfway between chance, 0.25, and 1 is 0.625."""
    flat = [record(acc=0.62, cross_entropy=50.0), record(acc=0.63, cross_entropy=50.0)]
    assert "50" in learning_failure(flat, 0)
    assert not learning_failure(flat, 1)


def test_a_soup_has_one_record_of_averaged_weights():
    assert not learning_failure([record(acc=0.5, averaged=True)], 0)
    assert learning_failure([record(averaged=True)], 0)


def test_averaged_weights_have_no_training_loss():
    assert not learning_failure([record(acc=0.4), record(acc=0.4, averaged=True)], 1)


def test_runs_of_earlier_versions_count_as_having_learned():
    records = [old(record()), old(record(loss=2.0))]
    assert not at_chance(records[0])
    assert not learning_failure(records, 0)
