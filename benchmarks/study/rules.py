"""Rules that choose the result of a run from its evaluations and weight averages."""

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.study.runs import Records
from medic.evaluation.selection import select


def accuracies(records: Records) -> list[float]:
    """Return the validation accuracy of each evaluation."""
    return [record["validation"]["acc"] for record in records]


def smoothed_accuracies(records: Records) -> list[float]:
    """Return the mean validation accuracy of each evaluation and its neighbours."""
    values = accuracies(records)
    return [fmean(values[max(0, k - 1) : k + 2]) for k in range(len(values))]


def argmax(values: Sequence[float], last: bool) -> int:
    """Return the position of the largest value: the first or the last on ties."""
    return max(range(len(values)), key=lambda k: (values[k], k if last else -k))


RULES: dict[str, Callable[[Records], int]] = {
    "validation accuracy, first on ties": lambda records: argmax(accuracies(records), last=False),
    "validation accuracy, last on ties": lambda records: argmax(accuracies(records), last=True),
    "validation accuracy, mean of three": lambda records: argmax(smoothed_accuracies(records), last=True),
    "validation loss": lambda records: argmax([-r["validation"]["domain_loss"] for r in records], last=True),
    "last": lambda records: len(records) - 1,
}
"""Rules that choose an evaluation by source data; each returns its position."""
ORACLE = "(best on the target, which nobody may use)"


def apply_rules(lines: Records, every: int) -> dict[str, dict[str, float]]:
    """Return, by rule, the target metrics and the validation accuracy of a run; `every` n-th evaluation is used."""
    evaluations = [record for record in lines if "average" not in record and "iteration" in record]
    kept = evaluations[::-1][::every][::-1]  # always with the last
    chosen = {name: kept[rule(kept)] for name, rule in RULES.items()}
    for record in (record for record in lines if "average" in record):
        candidates = [*kept, {**record, "averaged": True}]
        chosen[record["average"]] = record
        chosen[f"{record['average']}, unless significantly worse"] = candidates[select(candidates)]
    chosen[ORACLE] = max(kept, key=lambda record: record["target"]["acc"])
    return {name: {**record["target"], "validation": record["validation"]["acc"]} for name, record in chosen.items()}
