"""Model selection: pure functions that choose one evaluation from the records of one or several runs.

Only `by_oracle` receives records with measurements on the target.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from medic.errors import MedicError

Record = Mapping[str, Any]
Records = Sequence[Record]
"""Evaluations of one run, in order."""

_LEVEL = 1 - NormalDist().cdf(2)
"""Significance level of a one-sided comparison with one evaluation, which corresponds to two standard errors."""


def without_target(record: Record, targets: Sequence[int]) -> dict[str, Any]:
    """Return a record without measurements on target domains or unknown classes; `targets` are domain indices."""
    hidden = tuple(f"env{target}_" for target in targets)
    return {
        key: value
        for key, value in record.items()
        if key not in ("target", "targets", "source") and not key.startswith(hidden)
    }


def pack(correct: Iterable[bool]) -> str:
    """Encode which of N images are classified correctly as N bits in hexadecimal, with a leading 1."""
    return format(int("1" + "".join("01"[right] for right in correct), 2), "x")


def select(records: Records) -> int:
    """Return the index of the selected record: the averaged weights, or the best record on source validation.

    The record with the best pooled accuracy (the first on ties) is selected only if the averaged weights are
    significantly worse or missing.
    """
    return _best(records, validation_accuracy, _pooled).record


def evaluations(records: Sequence[Record]) -> list[Record]:
    """Return the records without averaged weights, unless the method requires averaging (SWAD).

    Averaged weights are the last record, so the other indices do not change.
    """
    return [record for record in records if record.get("required") or not record.get("averaged")]


class Chosen(NamedTuple):
    """The chosen run and record, and the value that determined the choice."""

    run: int
    record: int
    value: float


def by_validation(runs: Sequence[Records]) -> Chosen:
    """Choose by pooled accuracy on source validation, both within and across runs with different hyperparameters."""
    return _across([_best(records, validation_accuracy, _pooled) for records in runs])


def by_evaluation(runs: Sequence[Records]) -> Chosen:
    """Choose as in the paper: like `by_validation`, but without averaged weights."""
    return by_validation([evaluations(records) for records in runs])


def by_domains(runs: Sequence[Records]) -> Chosen:
    """Choose by DomainBed's training-domain validation: the mean validation accuracy over source domains."""
    return _across([_best(records, source_mean, _by_domain) for records in runs])


def by_last(runs: Sequence[Records]) -> Chosen:
    """Choose the last evaluation of the run whose last evaluation is best on source validation."""
    return _across([Chosen(0, len(records) - 1, validation_accuracy(records[-1])) for records in runs])


def by_oracle(runs: Sequence[Records], targets: Sequence[int]) -> Chosen:
    """Choose by DomainBed's test-domain validation: accuracy on held-out target images at the last evaluation.

    With several targets, their mean accuracy decides.
    """
    return _across([Chosen(0, len(records) - 1, target_mean(records[-1], targets, "out")) for records in runs])


def by_leaving_out(runs: Sequence[Records], pairs: Sequence[Mapping[int, Records]], sources: int) -> Chosen | None:
    """Choose by DomainBed's leave-one-domain-out: the mean accuracy on source domains that were left out in turn.

    `pairs[i]` maps a source domain to the records of a run with the hyperparameters of `runs[i]` and that domain as a
    second target. An evaluation is considered only if the paired runs for all `sources` also have an evaluation at that
    step.
    """
    best = []
    for records, others in zip(runs, pairs, strict=True):
        evaluated = [
            (f"env{source}_in", {_moment(record): record for record in pair_records})
            for source, pair_records in others.items()
        ]

        def left_out(record: Record, evaluated: Sequence[tuple[str, Mapping[Any, Record]]] = evaluated) -> float:
            values = [at[_moment(record)][f"{part}_acc"] for part, at in evaluated if _moment(record) in at]
            return sum(map(float, values)) / sources if len(values) == sources else float("-inf")

        def paired(
            first: Record, second: Record, evaluated: Sequence[tuple[str, Mapping[Any, Record]]] = evaluated
        ) -> list[_Pairs] | None:
            return _compared((at[_moment(first)], at[_moment(second)], part) for part, at in evaluated)

        best.append(_best(records, left_out, paired))
    chosen = _across(best)
    return None if chosen.value == float("-inf") else chosen


def _moment(record: Record) -> tuple[int, bool]:
    """Return a record's step and whether it has averaged weights, which share the step of the last evaluation."""
    return int(record["step"]), bool(record.get("averaged"))


def validation_accuracy(record: Record) -> float:
    """Return the pooled accuracy on source validation."""
    return float(record["validation"]["acc"])


def source_mean(record: Record) -> float:
    """Return the mean accuracy on held-out images over the domains in a record without the target."""
    values = [float(value) for key, value in record.items() if key.startswith("env") and key.endswith("_out_acc")]
    return sum(values) / len(values)


def target_mean(record: Record, targets: Sequence[int], part: str) -> float:
    """Return the mean accuracy over targets on one part of their known images: `in`, or `out` (held-out)."""
    keys = [f"env{target}_{part}_acc" for target in targets]
    if not all(key in record for key in keys):
        option = "--selection" if part == "out" else "--metrics"
        missing = "no held-out images" if part == "out" else "only held-out images"
        raise MedicError(f"a target has {missing}, so DomainBed's accuracy is undefined: use another {option}")
    return sum(float(record[key]) for key in keys) / len(keys)


class _Pairs(NamedTuple):
    """Paired comparison of two models on the same images, possibly summed over several sets of images."""

    images: int
    discordant: int
    """Number of images that only one of the models classifies correctly."""
    gain: int
    """How many more images the first model classifies correctly than the second (may be negative)."""


def _compared(parts: Iterable[tuple[Record, Record, str]]) -> list[_Pairs] | None:
    """Compare two records on each part, such as `env0_out`.

    Returns None if a record does not contain which images are correct, as in version 0.3.
    """
    domains = []
    for first, second, part in parts:
        if (key := f"{part}_correct") not in first or key not in second:
            return None
        bits, others = int(first[key], 16), int(second[key], 16)
        domains.append(
            _Pairs(bits.bit_length() - 1, (bits ^ others).bit_count(), bits.bit_count() - others.bit_count())
        )
    return domains


def _by_domain(first: Record, second: Record) -> list[_Pairs] | None:
    """Compare two records on the held-out images of each source domain."""
    parts = [key.removesuffix("_acc") for key in second if key.startswith("env") and key.endswith("_out_acc")]
    return _compared((first, second, part) for part in parts)


def _pooled(first: Record, second: Record) -> list[_Pairs] | None:
    """Compare two records on source validation.

    If the records lack the correct images, assume that the models differ on as many images as their accuracies allow.
    """
    if domains := _by_domain(first, second):
        return [_Pairs(*map(sum, zip(*domains, strict=True)))]
    images = second["validation"].get("images")
    if images is None:
        return None
    right = [round(images * validation_accuracy(record)) for record in (first, second)]
    gain = right[0] - right[1]
    return [_Pairs(images, gain + 2 * min(images - right[0], right[1]), gain)]


def _best(
    records: Records, value: Callable[[Record], float], compare: Callable[[Record, Record], list[_Pairs] | None]
) -> Chosen:
    """Choose a run's averaged weights unless they are significantly worse than its best record (the first on ties).

    If averaging is part of the method (SWAD), always choose the averaged weights.
    """
    values = [_number(value(record)) for record in records]
    if records[-1].get("required"):
        return Chosen(0, len(records) - 1, values[-1])
    best, first = max((value, -position) for position, value in enumerate(values))
    if records[-1].get("averaged") and values[-1] > float("-inf"):
        pairs = compare(records[-first], records[-1]) if best > values[-1] else None
        if pairs is None or best - values[-1] <= _margin(pairs, len(records) - 1):
            return Chosen(0, len(records) - 1, values[-1])
    return Chosen(0, -first, best)


def _margin(domains: Sequence[_Pairs], evaluations: int) -> float:
    """Return by how much the best evaluation may exceed the averaged weights by chance, in mean accuracy over domains.

    Uses the standard error of a paired difference. The significance level is divided by the number of evaluations
    (Bonferroni), because the best of many evaluations is biased upwards.
    """
    variances = [
        (pairs.discordant / pairs.images - (pairs.gain / pairs.images) ** 2) / pairs.images for pairs in domains
    ]
    error = math.sqrt(max(math.fsum(variances), 0.0)) / len(domains)
    return NormalDist().inv_cdf(1 - _LEVEL / evaluations) * error


def _across(choices: Sequence[Chosen]) -> Chosen:
    """Choose the best run (the last on ties), as DomainBed does."""
    _, run = max((_number(chosen.value), run) for run, chosen in enumerate(choices))
    return choices[run]._replace(run=run)


def _number(value: float) -> float:
    """Replace NaN with -inf, so that every number compares as better."""
    return value if value == value else float("-inf")
