"""Table cells: the evaluations that a cell averages, their mean and its standard error."""

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from medic.errors import MedicError
from medic.evaluation import selection
from medic.metrics import Metric
from medic.results.compare import agree, complete_value, row_settings
from medic.results.wording import short
from medic.runs.run import Run


@dataclass(frozen=True)
class Pick:
    """The selected evaluation of a trial."""

    run: Run
    record: int
    decided_by: tuple[Run, ...] = ()
    """Runs with a source domain as a second target, if the selection was based on them."""

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """The selected record."""
        return self.run.records[self.record]

    def value(self, metric: Metric) -> float | None:
        """Return a target metric in display units, averaged over targets, or None if it is missing."""
        record = self.evaluation
        if metric.key == "domainbed":  # DomainBed tests on the target's `in` part
            environments = self.run.environments  # empty for a run without a target
            value = selection.target_mean(record, environments, "in") if environments else None
        else:
            value = record["target"].get(metric.key, record.get(metric.key))
        return None if value is None else metric.scale * float(value)

    def best(self, metric: Metric) -> float | None:
        """Return the metric's best value among all evaluations of the run, which an oracle would report."""
        values = [Pick(self.run, record).value(metric) for record in range(len(self.run.records))]
        numbers = [value for value in values if value is not None]
        if len(numbers) < 2:  # nothing to choose from
            return None
        if metric.ideal is not None:
            ideal = metric.scale * metric.ideal
            return min(numbers, key=lambda value: abs(value - ideal))
        return (max if metric.higher_is_better else min)(numbers)


@dataclass(frozen=True)
class Cell:
    """Selected evaluations of a cell: one per trial, or one per trial and target if the cell averages over targets."""

    picks: tuple[Pick, ...] = ()
    parts: int = 1
    """Number of evaluations per trial. Trials with fewer evaluations are ignored."""

    def values(self, metric: Metric) -> list[float]:
        """Return a metric for each complete trial, averaged over the trial's evaluations."""
        trials: dict[tuple[int, int | None], list[float]] = {}
        for pick in self.picks:
            if (value := pick.value(metric)) is not None:
                trials.setdefault(pick.run.trial, []).append(value)
        return [sum(values) / self.parts for values in trials.values() if len(values) == self.parts]

    def flattery(self, metric: Metric) -> float | None:
        """Return the mean difference between the evaluation that is best on the target and the selected one."""
        pairs = [(pick.best(metric), pick.value(metric)) for pick in self.picks]
        gains = [best - chosen for best, chosen in pairs if best is not None and chosen is not None]
        return sum(gains) / len(gains) if gains else None

    def mean(self, metric: Metric) -> float | None:
        """Return a metric's mean over trials, or None without trials."""
        values = self.values(metric)
        return sum(values) / len(values) if values else None

    def error(self, metric: Metric) -> float | None:
        """Return the standard error of the mean over trials, using the population deviation as DomainBed does."""
        values = self.values(metric)
        if len(values) < 2:
            return None
        mean = sum(values) / len(values)
        return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) / len(values))


def pick_cell(runs: Sequence[Run], rule: str, pairs: Sequence[Run] = ()) -> Cell:
    """Select one evaluation per trial with a rule from `medic.evaluation.selection`.

    The runs in a trial differ in hyperparameters and compete with each other. `pairs` are the runs with a source domain
    as a second target, which the `leave-one-out` rule requires.
    """
    trials: dict[tuple[int, int | None], list[Run]] = {}
    for run in runs:
        trials.setdefault(run.trial, []).append(run)
    picks = [
        _pick(candidates, rule, [pair for pair in pairs if pair.trial == trial])
        for trial, candidates in sorted(trials.items(), key=lambda item: str(item[0]))
    ]
    return Cell(tuple(pick for pick in picks if pick is not None))


def _pick(runs: Sequence[Run], rule: str, pairs: Sequence[Run]) -> Pick | None:
    """Select one evaluation from the runs in a trial."""
    candidates = _without_copies(runs)
    if rule == "validation" and len(candidates) == 1:
        return Pick(candidates[0], candidates[0].selected)
    records = [_eligible(run.records, rule) for run in candidates]
    hidden = [_eligible(run.hidden_records, rule) for run in candidates]
    decided_by: list[tuple[Run, ...]] = [() for _ in candidates]
    chosen: selection.Chosen | None
    if rule == "oracle":
        targets = candidates[0].environments
        chosen = selection.by_oracle(records, targets) if targets else None
    elif rule == "leave-one-out":
        decided_by = [_partners(run, pairs) for run in candidates]
        left_out = [_left_out(run, partners) for run, partners in zip(candidates, decided_by, strict=True)]
        chosen = selection.by_leaving_out(hidden, left_out, len(candidates[0].config.data.sources))
    else:
        rules = {
            "validation": selection.by_validation,
            "evaluation": selection.by_evaluation,
            "domainbed": selection.by_domains,
            "last": selection.by_last,
        }
        chosen = rules[rule](hidden)
    return None if chosen is None else Pick(candidates[chosen.run], chosen.record, decided_by[chosen.run])


def _eligible(records: Sequence[Mapping[str, Any]], rule: str) -> Sequence[Mapping[str, Any]]:
    """Return the records that a rule may select.

    With DomainBed's rules and `last`, averaged weights are eligible only for methods that require them.
    """
    return selection.evaluations(records) if rule in ("domainbed", "last", "oracle") else records


def _partners(run: Run, pairs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the two-target runs that have the same hyperparameters as a run."""
    return tuple(
        pair for pair in pairs if pair.draw == run.draw and agree(pair, run, {*row_settings(pair), *row_settings(run)})
    )


def _left_out(run: Run, partners: Sequence[Run]) -> dict[int, Sequence[Mapping[str, Any]]]:
    """Return the records of the runs with a source domain as a second target, keyed by the index of that domain."""
    return {env: pair.records for pair in partners for env in pair.environments if env not in run.environments}


def _without_copies(runs: Sequence[Run]) -> list[Run]:
    """Return one run per choice of hyperparameters, ordered by draw.

    Raises an error if runs with the same settings have different results.
    """
    if len(runs) == 1:
        return list(runs)
    names = sorted({name for run in runs for name in row_settings(run)})
    distinct: dict[tuple[int, str], Run] = {}
    for run in sorted(runs, key=lambda run: not run.config.evaluation.all_scores):  # keep the run with more scores
        settings = [complete_value(run, name) for name in names]
        other = distinct.setdefault((run.draw, repr([*settings, run.config.soup])), run)
        shared = other.records[-1]["target"].keys() & run.records[-1]["target"].keys()
        if other is not run and _measured(other, shared) != _measured(run, shared):
            raise MedicError(
                f"{other.path} and {run.path} have the same settings but different results"
                f"{_environment_differences(other, run)}: move one of them away, or pass their folders separately"
            )
    return [distinct[key] for key in sorted(distinct)]


def _measured(run: Run, names: Set[str]) -> str:
    """Return the measurements that version 0.3 also recorded, converted to text so that NaN equals NaN.

    `names` are the metrics on the target. A run with `all_scores` has more of them.
    """
    measurements = [
        (
            record["iteration"],
            {name: value for name, value in record["target"].items() if name in names},
            record["validation"]["acc"],
        )
        for record in run.records
    ]
    return json.dumps(measurements, sort_keys=True)


def _environment_differences(first: Run, second: Run) -> str:
    names = ("images", "commit", "gpu", "packages", "platform")
    values = [(name, first.environment.get(name), second.environment.get(name)) for name in names]
    differing = ", ".join(f"{name} ({short(one)}, {short(other)})" for name, one, other in values if one != other)
    return f"; they differ in {differing}" if differing else ""
