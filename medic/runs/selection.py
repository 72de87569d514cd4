"""Model selection: pure functions that choose an evaluation of a run, or of several runs, from their records.

Only `by_oracle` receives records with measurements on the target.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from medic.errors import MedicError

Record = Mapping[str, Any]
Records = Sequence[Record]
"""The evaluations of one run, in order."""


def without_target(record: Record, targets: Sequence[int]) -> dict[str, Any]:
    """Return a record without measurements on target domains or unknown classes; `targets` are domain indices."""
    hidden = {"target", "targets", "source"} | {f"env{t}_{part}_acc" for t in targets for part in ("in", "out")}
    return {key: value for key, value in record.items() if key not in hidden}


def select(records: Records) -> int:
    """Return the index of the averaged weights, or of the record with the best pooled accuracy on source validation.

    That is the first on ties, and it is selected if the averaged weights are significantly worse, or if there are none.
    """
    return _best(records, validation_accuracy).record


def evaluations(records: Sequence[Record]) -> list[Record]:
    """Return the records without that of averaged weights, which is the last, so that positions are kept."""
    return [record for record in records if not record.get("averaged")]


class Chosen(NamedTuple):
    """A record of one of several runs, and the value that decided."""

    run: int
    record: int
    value: float


def by_validation(runs: Sequence[Records]) -> Chosen:
    """Choose by pooled accuracy on source validation, within and across runs with different hyperparameters."""
    return _across([_best(records, validation_accuracy) for records in runs])


def by_evaluation(runs: Sequence[Records]) -> Chosen:
    """Choose the paper's way: like `by_validation`, but averaged weights do not count."""
    return by_validation([evaluations(records) for records in runs])


def by_domains(runs: Sequence[Records]) -> Chosen:
    """Choose by DomainBed's training-domain validation: the mean validation accuracy of the source domains."""
    return _across([_best(records, source_mean) for records in runs])


def by_last(runs: Sequence[Records]) -> Chosen:
    """Choose the last evaluation of the run whose last evaluation is best on source validation."""
    return _across([Chosen(0, len(records) - 1, validation_accuracy(records[-1])) for records in runs])


def by_oracle(runs: Sequence[Records], targets: Sequence[int]) -> Chosen:
    """Choose by DomainBed's test-domain validation: accuracy on held-out target images at the last evaluation.

    With several targets, their mean decides.
    """
    return _across([Chosen(0, len(records) - 1, target_mean(records[-1], targets, "out")) for records in runs])


def by_leaving_out(runs: Sequence[Records], pairs: Sequence[Mapping[int, Records]], sources: int) -> Chosen | None:
    """Choose by DomainBed's leave-one-domain-out: the accuracy on each source of a run that was not trained on it.

    `pairs[i]` maps a source domain to the records of the run with the hyperparameters of `runs[i]` and that domain as a
    second target. An evaluation counts only if all `sources` of these runs have an evaluation at the same step.
    """
    found = []
    for records, others in zip(runs, pairs, strict=True):
        accuracies = [
            {_moment(record): float(record[f"env{source}_in_acc"]) for record in pair_records}
            for source, pair_records in others.items()
        ]

        def left_out(record: Record, accuracies: Sequence[Mapping[Any, float]] = accuracies) -> float:
            values = [moments[_moment(record)] for moments in accuracies if _moment(record) in moments]
            return sum(values) / sources if len(values) == sources else float("-inf")

        found.append(_best(records, left_out))
    chosen = _across(found)
    return None if chosen.value == float("-inf") else chosen


def _moment(record: Record) -> tuple[int, bool]:
    """Return the step of a record, and whether it is of averaged weights, which share the step of the last ones."""
    return int(record["step"]), bool(record.get("averaged"))


def validation_accuracy(record: Record) -> float:
    """Return the pooled accuracy on source validation."""
    return float(record["validation"]["acc"])


def source_mean(record: Record) -> float:
    """Return the mean accuracy on held-out images of the domains in a record without the target."""
    values = [float(value) for key, value in record.items() if key.startswith("env") and key.endswith("_out_acc")]
    return sum(values) / len(values)


def target_mean(record: Record, targets: Sequence[int], part: str) -> float:
    """Return the mean accuracy of the targets on one part of their known images: `in`, or `out` for held-out ones."""
    keys = [f"env{target}_{part}_acc" for target in targets]
    if not all(key in record for key in keys):
        option = "--selection" if part == "out" else "--metrics"
        missing = "no held-out images" if part == "out" else "only held-out images"
        raise MedicError(f"a target has {missing}, so DomainBed's accuracy is undefined: use another {option}")
    return sum(float(record[key]) for key in keys) / len(keys)


def _best(records: Records, value: Callable[[Record], float]) -> Chosen:
    """Choose the averaged weights of a run if they are not significantly worse; else its best record, first on ties."""
    values = [_number(value(record)) for record in records]
    best, first = max((value, -position) for position, value in enumerate(values))
    if records[-1].get("averaged") and values[-1] >= best - _tolerance(best, records[-1]):
        return Chosen(0, len(records) - 1, values[-1])
    return Chosen(0, -first, best)


def _tolerance(accuracy: float, record: Record) -> float:
    """Return two standard errors of an accuracy on the validation images; earlier versions did not count them."""
    images = record["validation"].get("images")
    if images is None or not math.isfinite(accuracy):
        return math.inf
    return 2 * math.sqrt(max(accuracy * (1 - accuracy), 1 / images) / images)


def _across(found: Sequence[Chosen]) -> Chosen:
    """Choose the best of several runs, the last on ties, as DomainBed does."""
    _, run = max((_number(chosen.value), run) for run, chosen in enumerate(found))
    return found[run]._replace(run=run)


def _number(value: float) -> float:
    """Return -inf for NaN, so that every number is better."""
    return value if value == value else float("-inf")
