"""Check from its records whether a run learned anything. This module does not import torch.

Records written before version 0.4 do not contain chance levels, so those runs are assumed to have learned.
"""

from medic.evaluation.selection import Record, Records

FALL = 0.01
"""Fraction of its initial value by which the training loss must fall."""


def at_chance(record: Record) -> bool:
    """Return whether the class-averaged validation accuracy is not significantly above chance (1 / classes).

    Constant predictions are always at chance, unless there are too few validation images to tell.
    """
    limit = _chance_limit(record)
    return limit is not None and bool(record["validation"]["class_acc"] <= limit)


def _chance_limit(record: Record) -> float | None:
    """Return the accuracy that is two standard errors above chance.

    Returns None if the record lacks chance levels, or has so few images that even perfect accuracy would not exceed the
    limit.
    """
    validation = record["validation"]
    if "chance_acc" not in validation:
        return None
    limit = float(validation["chance_acc"] + 2 * validation["chance_error"])
    return limit if limit < 1 else None


def describe_chance(record: Record) -> str:
    """Describe the validation accuracy of a record that is at chance."""
    accuracy, chance = (f"{100 * record['validation'][key]:.1f}%" for key in ("class_acc", "chance_acc"))
    return f"class-averaged validation accuracy {accuracy} is not significantly above chance ({chance})"


def learning_failure(records: Records, selected: int) -> str:
    """Return why a run learned nothing, or an empty string if it learned.

    A run learned nothing if its selected record is at chance, or if its training loss never fell and the selected
    record's validation cross-entropy is no better than chance. Both are required, because some losses rise while the
    model learns. Some objectives produce logits that are not log-probabilities, so an accuracy at least halfway between
    chance and 1 is also treated as learning.
    """
    record = records[selected]
    if at_chance(record):
        return describe_chance(record)
    validation = record["validation"]
    if _chance_limit(record) is None or 2 * validation["class_acc"] >= 1 + validation["chance_acc"]:
        return ""
    losses = [float(one["loss"]) for one in records if not one.get("averaged")]
    if len(losses) < 2:  # as for a soup
        return ""
    first, *later = losses
    if min(later) < first - FALL * abs(first) or validation["loss"] < validation["chance_loss"]:
        return ""
    return (
        f"training loss never fell (initially {first:.3g}, at best {min(later):.3g} later), and validation "
        f"cross-entropy {validation['loss']:.3g} is no better than chance ({validation['chance_loss']:.3g})"
    )
