"""A cell of a table: which evaluations of which runs it averages, and their mean with its error."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from medic.errors import MedicError
from medic.runs import selection
from medic.tables.results import Result, short

DRAWN = ("hparams", "lr", "weight_decay", "batch_size", "inner_lr")
"""Settings that a draw of hyper-parameters changes."""
FITTED = ("domain_splits", "steps", "separate", "batch_size")
"""Settings that follow the number of source domains where they were not given."""


class Metric(NamedTuple):
    """A number of a record: its key, and what it is multiplied with to be shown, 100 for percent."""

    key: str
    scale: float = 100.0


@dataclass(frozen=True)
class Pick:
    """The evaluation of a run that counts, and which trial it stands for."""

    result: Result
    record: int
    trial: tuple[int, int | None]
    beside: tuple[Result, ...] = ()
    """The runs that decided, where it was not this one itself: with a source domain as a second target."""

    def value(self, key: str) -> float | None:
        """A metric on the target, or the mean over several; a fraction."""
        record = self.result.records[self.record]
        if key == "domainbed":  # DomainBed tests on the part of the target that it would train on
            return selection.target_mean(record, self.result.environments, "in")
        found = record["target"].get(key, record.get(key))
        return None if found is None else float(found)


@dataclass(frozen=True)
class Cell:
    """The evaluations that a cell averages: of every trial one, or several, as of every target of a dataset."""

    picks: tuple[Pick, ...] = ()
    parts: int = 1
    """How many a trial has; one that lacks some does not count."""

    def values(self, metric: Metric) -> list[float]:
        """A metric of every trial, the mean over its parts; of those that have it."""
        trials: dict[tuple[int, int | None], list[float]] = {}
        for pick in self.picks:
            if (value := pick.value(metric.key)) is not None:
                trials.setdefault(pick.trial, []).append(metric.scale * value)
        return [sum(values) / self.parts for values in trials.values() if len(values) == self.parts]

    def mean(self, metric: Metric) -> float | None:
        """The mean over trials, or None where there is none."""
        values = self.values(metric)
        return sum(values) / len(values) if values else None

    def error(self, metric: Metric) -> float | None:
        """The standard error of the mean over trials, from the deviation of the values themselves, as DomainBed's."""
        values = self.values(metric)
        if len(values) < 2:
            return None
        mean = sum(values) / len(values)
        return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) / len(values))


def pick_cell(runs: Sequence[Result], rule: str, pairs: Sequence[Result] = ()) -> Cell:
    """The evaluations that a cell averages: of every trial, the one that a rule selects.

    `pairs` are the runs that keep a source domain as a second target, which the rule `leave-one-out` looks at.
    """
    trials: dict[tuple[int, int | None], list[Result]] = {}
    for run in runs:
        trials.setdefault(run.trial, []).append(run)
    picks = [
        _pick(trial, several, rule, [pair for pair in pairs if pair.trial == trial])
        for trial, several in sorted(trials.items(), key=lambda item: str(item[0]))
    ]
    return Cell(tuple(pick for pick in picks if pick is not None))


def _pick(trial: tuple[int, int | None], runs: Sequence[Result], rule: str, pairs: Sequence[Result]) -> Pick | None:
    """The evaluation that counts of the runs of one trial, which differ in their hyper-parameters."""
    ordered = _one_each(runs)
    beside = [_alike(run, pairs) for run in ordered]
    hidden = [[selection.without_target(record, run.environments) for record in run.records] for run in ordered]
    if rule == "oracle":
        every = [run.records for run in ordered]
        chosen: selection.Chosen | None = selection.by_oracle(every, ordered[0].environments)
    elif rule == "leave-one-out":
        found = [_left_out(run, several) for run, several in zip(ordered, beside, strict=True)]
        chosen = selection.by_leaving_out(hidden, found, len(ordered[0].settings["sources"]))
    else:
        rules = {"validation": selection.by_validation, "domainbed": selection.by_domains, "last": selection.by_last}
        chosen = rules[rule](hidden)
    if chosen is None:
        return None
    return Pick(ordered[chosen.run], chosen.record, trial, beside[chosen.run] if rule == "leave-one-out" else ())


def _alike(run: Result, pairs: Sequence[Result]) -> tuple[Result, ...]:
    """Of the runs with a second target those that have the hyper-parameters of a run."""
    names = [name for name in DRAWN if name not in FITTED]
    return tuple(pair for pair in pairs if _draw(pair, names) == _draw(run, names))


def _left_out(run: Result, pairs: Sequence[Result]) -> dict[int, Sequence[Mapping[str, Any]]]:
    """By source domain, the records of the run that has it as a second target."""
    return {env: pair.records for pair in pairs for env in pair.environments if env not in run.environments}


def _draw(run: Result, names: Sequence[str]) -> tuple[int, str]:
    """The hyper-parameters of a run: the number of their draw, and what was drawn or given instead."""
    return run.draw, repr([run.settings.get(name) for name in names])


def _one_each(runs: Sequence[Result]) -> list[Result]:
    """A run for every choice of hyper-parameters, by the number of the draw; the same run twice is one.

    Two that should be the same and are not are an error.
    """
    found: dict[tuple[int, str], Result] = {}
    for run in runs:
        other = found.setdefault(_draw(run, DRAWN), run)
        if other is not run and _measured(other) != _measured(run):
            raise MedicError(
                f"{other.path} and {run.path} have the same settings and other results{_apart(other, run)}: "
                "move one of them away, or give their folders apart"
            )
    return [found[draw] for draw in sorted(found)]


def _measured(run: Result) -> str:
    """All that was measured, as text, in which what is not a number is equal to itself."""
    found = [(record["iteration"], record["target"], record["validation"]) for record in run.records]
    return json.dumps(found, sort_keys=True)


def _apart(first: Result, second: Result) -> str:
    """What two runs with the same settings differ in, as far as their environments say."""
    names = ("images", "commit", "gpu", "packages", "platform")
    both = [(name, first.environment.get(name), second.environment.get(name)) for name in names]
    told = ", ".join(f"{name} ({short(one)}, {short(two)})" for name, one, two in both if one != two)
    return f"; they differ in {told}" if told else ""
