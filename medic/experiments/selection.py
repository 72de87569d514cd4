"""Which evaluation of which run counts: pure functions over records.

All but the rule that is named `oracle` are given records that do not show the target.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]
Records = Sequence[Record]
"""The evaluations of one run, in order."""


def shown(record: Record, targets: Sequence[int]) -> dict[str, Any]:
    """A record with nothing in it that was measured on a target domain, or on unknown classes."""
    hidden = {"target", "targets", "source"} | {f"env{t}_{part}_acc" for t in targets for part in ("in", "out")}
    return {key: value for key, value in record.items() if key not in hidden}


def select(records: Records) -> int:
    """The position of the record with the best pooled source-validation accuracy, the first on ties.

    Where weights were averaged, the record of the averaged ones is the result, and there is nothing to choose.
    """
    return _best(records, lambda record: float(record["validation"]["acc"])).record


class Chosen(NamedTuple):
    """A record of one of several runs, and the value that it was chosen by."""

    run: int
    record: int
    value: float


def by_validation(runs: Sequence[Records]) -> Chosen:
    """The best pooled accuracy on source validation, in and across runs that differ in hyper-parameters."""
    return _across([_best(records, lambda record: float(record["validation"]["acc"])) for records in runs])


def by_domains(runs: Sequence[Records]) -> Chosen:
    """DomainBed's training-domain validation: the best mean over source domains of their validation accuracies."""
    return _across([_best(records, source_mean) for records in runs])


def by_last(runs: Sequence[Records]) -> Chosen:
    """The last evaluation of each run, and of these the best on source validation."""
    last = [Chosen(0, len(records) - 1, float(records[-1]["validation"]["acc"])) for records in runs]
    return _across(last)


def by_oracle(runs: Sequence[Records], target: int) -> Chosen:
    """DomainBed's test-domain validation, which looks at the target: its held-out accuracy at the last evaluation."""
    key = f"env{target}_out_acc"
    return _across([Chosen(0, len(records) - 1, float(records[-1][key])) for records in runs])


def by_leaving_out(runs: Sequence[Records], pairs: Sequence[Mapping[int, Records]], sources: int) -> Chosen | None:
    """DomainBed's leave-one-domain-out: how well each source is met by a run that has not seen it either.

    `pairs[i]` has, for every source domain, the records of the run with the hyper-parameters of `runs[i]` that kept it
    as a second target. An evaluation counts if all `sources` of them have one at the same step.
    """
    found = []
    for records, others in zip(runs, pairs, strict=True):
        values: list[tuple[float, int]] = []
        for position, record in enumerate(records):
            there = [
                float(pair[f"env{source}_in_acc"])
                for source, pair_records in others.items()
                for pair in pair_records
                if pair["step"] == record["step"]
            ]
            if len(there) == sources:
                values.append((_number(sum(there) / sources), -position))
        if values:
            value, position = max(values)
            found.append(Chosen(0, -position, value))
        else:
            found.append(Chosen(0, 0, float("-inf")))
    chosen = _across(found)
    return None if chosen.value == float("-inf") else chosen


def source_mean(record: Record) -> float:
    """The mean over source domains of the accuracy on what they hold out; the targets' are not in a shown record."""
    values = [float(value) for key, value in record.items() if key.startswith("env") and key.endswith("_out_acc")]
    return sum(values) / len(values)


def _best(records: Records, value: Callable[[Record], float]) -> Chosen:
    """The best record of a run, the first on ties; the averaged one, where weights were averaged."""
    if records[-1].get("averaged"):
        return Chosen(0, len(records) - 1, value(records[-1]))
    values = [(_number(value(record)), -position) for position, record in enumerate(records)]
    best, position = max(values)
    return Chosen(0, -position, best)


def _across(found: Sequence[Chosen]) -> Chosen:
    """The best of several runs, the last on ties, as DomainBed has it."""
    values = [(_number(chosen.value), run) for run, chosen in enumerate(found)]
    _, run = max(values)
    return found[run]._replace(run=run)


def _number(value: float) -> float:
    """What is not a number is worse than all that are."""
    return value if value == value else float("-inf")
