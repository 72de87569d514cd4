"""Which evaluation of which run counts: pure functions over records.

All but the rule that is named `oracle` are given records that do not show the target.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from medic.errors import MedicError

Record = Mapping[str, Any]
Records = Sequence[Record]
"""The evaluations of one run, in order."""


def without_target(record: Record, targets: Sequence[int]) -> dict[str, Any]:
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


def by_oracle(runs: Sequence[Records], targets: Sequence[int]) -> Chosen:
    """DomainBed's test-domain validation, which looks at the target: its held-out accuracy at the last evaluation.

    Of several targets it is the mean.
    """
    return _across([Chosen(0, len(records) - 1, target_mean(records[-1], targets, "out")) for records in runs])


def target_mean(record: Record, targets: Sequence[int], part: str) -> float:
    """The mean over targets of the accuracy on one part of their images of known classes: `in`, or `out` held out."""
    keys = [f"env{target}_{part}_acc" for target in targets]
    if not all(key in record for key in keys):
        kept, way = ("nothing", "another --selection") if part == "out" else ("everything", "other --metrics")
        raise MedicError(f"a target holds {kept} out, so it has no accuracy as DomainBed's scripts want it: use {way}")
    return sum(float(record[key]) for key in keys) / len(keys)


def by_leaving_out(runs: Sequence[Records], pairs: Sequence[Mapping[int, Records]], sources: int) -> Chosen | None:
    """DomainBed's leave-one-domain-out: how well each source is met by a run that has not seen it either.

    `pairs[i]` has, for every source domain, the records of the run with the hyper-parameters of `runs[i]` that kept it
    as a second target. An evaluation counts if all `sources` of them have one at the same step, averaged as it is.
    """
    found = []
    for records, others in zip(runs, pairs, strict=True):
        accuracies = [
            {_moment(record): float(record[f"env{source}_in_acc"]) for record in pair_records}
            for source, pair_records in others.items()
        ]

        def left_out(record: Record, there: Sequence[Mapping[Any, float]] = accuracies) -> float:
            values = [moments[_moment(record)] for moments in there if _moment(record) in moments]
            return sum(values) / sources if len(values) == sources else float("-inf")

        found.append(_best(records, left_out))
    chosen = _across(found)
    return None if chosen.value == float("-inf") else chosen


def _moment(record: Record) -> tuple[int, bool]:
    """When a record was made: averaged weights are measured at the iteration that the last ones were."""
    return int(record["step"]), bool(record.get("averaged"))


def source_mean(record: Record) -> float:
    """The mean over the domains of a record without target of the accuracy on what they hold out."""
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
