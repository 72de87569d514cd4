"""Tables of results: rows of methods, columns of domains, a value with its error and its runs in every cell."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from medic.errors import MedicError, check_choice
from medic.experiments import selection
from medic.experiments.config import RunConfig
from medic.experiments.results import Result

AVERAGE = "Avg"


class Metric(NamedTuple):
    """A number of a record: its key, and what it is multiplied with to be shown, 100 for percent."""

    key: str
    scale: float = 100.0


METRICS = {"Acc": Metric("acc"), "H-score": Metric("hscore"), "OSCR": Metric("oscr")}
"""The paper's metrics, by the titles that it gives them."""
SELECTIONS = ("validation", "domainbed", "last", "leave-one-out", "oracle")
"""Which evaluation counts: see `medic.experiments.selection`."""

_SPREAD = ("target", "sources", "seed", "trial_seed", "partial")
"""Settings in which the runs of a row differ."""
_DRAWN = ("hparams", "lr", "weight_decay", "batch_size", "inner_lr")
"""Settings that a draw of hyper-parameters changes."""


@dataclass(frozen=True)
class Pick:
    """The evaluation of a run that counts, and which trial it stands for."""

    result: Result
    record: int
    trial: tuple[int, int | None]

    def value(self, key: str) -> float | None:
        """A metric on the target, or the mean over several; a fraction."""
        record = self.result.records[self.record]
        if key == "domainbed":  # DomainBed tests on the part of the target that it would train on
            values = [float(record[f"env{target}_in_acc"]) for target in self.result.environments]
            return sum(values) / len(values)
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


@dataclass(frozen=True)
class Row:
    """A system in a table: its cells by column."""

    label: str
    method: str
    cells: Mapping[str, Cell]
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    """What the paper calls the method."""
    variant: str = ""
    """What the paper calls this variant of the method, if it has several."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Where a metric is read from, by title, if not where the table's other rows have it."""

    @property
    def weights(self) -> str | None:
        """The hash of the weights that its runs began with."""
        picks = [pick for cell in self.cells.values() for pick in cell.picks]
        return picks[0].result.environment.get("weights") if picks else None

    def average(self, metric: Metric, columns: Sequence[str]) -> float | None:
        """The mean of the columns' means; None if one is missing."""
        means = [self.cells.get(column, Cell()).mean(metric) for column in columns]
        there = [mean for mean in means if mean is not None]
        return sum(there) / len(there) if there and len(there) == len(means) else None


@dataclass(frozen=True)
class Table:
    """Rows and columns, the metrics that are shown of them, and what a reader should know."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    metrics: Mapping[str, Metric]
    notes: tuple[str, ...] = ()
    kind: str = "target"
    """What the columns are: target or source domains."""


def tabulate(
    results: Sequence[Result], rule: str = "validation", metrics: Mapping[str, Metric] = METRICS, by: str = "auto"
) -> Table:
    """Make a table of results: a row for every method, and for every other way that runs differ in.

    Columns are targets, or sources where every run has one source and several targets.
    """
    check_choice("selection", rule, SELECTIONS)
    if not results:
        raise MedicError("there are no finished runs to make a table of")
    kind = check_choice("columns", by, ["auto", "target", "source"])
    if kind == "auto":
        single = all(len(result.settings["sources"]) == 1 < len(result.targets) for result in results)
        kind = "source" if single else "target"
    shown = [result for result in results if kind == "source" or len(result.targets) == 1 or rule != "leave-one-out"]
    searched = {result.settings["method"] for result in results if result.draw}
    groups: dict[str, list[Result]] = {}
    for result in shown:
        groups.setdefault(_row_key(result, result.settings["method"] in searched), []).append(result)
    labels = row_labels({key: runs[0].settings for key, runs in groups.items()})
    columns = _ordered_columns(shown, kind)
    rows = []
    for key, runs in groups.items():
        cells = {column: pick_cell([r for r in runs if column_of(r, kind) == column], rule) for column in columns}
        rows.append(Row(labels[key], str(runs[0].settings["method"]), cells, runs[0].settings))
    rows.sort(key=lambda row: row.label)
    used = [pick.result for row in rows for cell in row.cells.values() for pick in cell.picks]
    there = {
        title: metric
        for title, metric in metrics.items()
        if any(cell.values(metric) for row in rows for cell in row.cells.values())
    }
    return Table(columns, tuple(rows), there, tuple(differences(used)), kind)


def find_row(table: Table, label: str) -> Row:
    """A row by its label, by the name of its method if that has one row, or by what no other label holds."""
    for found in (
        [row for row in table.rows if row.label == label],
        [row for row in table.rows if row.method == label],
        [row for row in table.rows if label in row.label],
    ):
        if len(found) == 1:
            return found[0]
    labels = "; ".join(row.label for row in table.rows)
    raise MedicError(f"row {label!r} is not one of the table's, or several: {labels}")


def pick_cell(runs: Sequence[Result], rule: str) -> Cell:
    """The evaluations that a cell averages: of every trial, the one that a rule selects."""
    trials: dict[tuple[int, int | None], list[Result]] = {}
    for run in runs:
        trials.setdefault(run.trial, []).append(run)
    picks = [_pick(trial, several, rule) for trial, several in sorted(trials.items(), key=lambda item: str(item[0]))]
    return Cell(tuple(pick for pick in picks if pick is not None))


def _pick(trial: tuple[int, int | None], runs: Sequence[Result], rule: str) -> Pick | None:
    """The evaluation that counts of the runs of one trial, which differ in their draws of hyper-parameters."""
    pairs: dict[int, dict[int, Result]] = {}
    if rule == "leave-one-out":
        single = {env for run in runs if len(run.targets) == 1 for env in run.environments}
        for run in runs:
            if len(run.targets) == 2:
                for env in set(run.environments) - single:
                    pairs.setdefault(run.draw, {})[env] = run
        runs = [run for run in runs if len(run.targets) == 1]
    by_draw = _one_each(runs)
    if not by_draw:
        return None
    ordered = [by_draw[draw] for draw in sorted(by_draw)]
    hidden = [[selection.shown(record, run.environments) for record in run.records] for run in ordered]
    if rule == "oracle":
        chosen: selection.Chosen | None = selection.by_oracle(
            [run.records for run in ordered], ordered[0].environments[0]
        )
    elif rule == "leave-one-out":
        found = [{env: pair.records for env, pair in pairs.get(draw, {}).items()} for draw in sorted(by_draw)]
        chosen = selection.by_leaving_out(hidden, found, len(ordered[0].settings["sources"]))
    else:
        rules = {"validation": selection.by_validation, "domainbed": selection.by_domains, "last": selection.by_last}
        chosen = rules[rule](hidden)
    return None if chosen is None else Pick(ordered[chosen.run], chosen.record, trial)


def _one_each(runs: Sequence[Result]) -> dict[int, Result]:
    """The run of every draw; the same run twice is one, and two that should be the same and are not are an error."""
    found: dict[int, Result] = {}
    for run in runs:
        other = found.setdefault(run.draw, run)
        if other is not run and other.records[-1]["target"] != run.records[-1]["target"]:
            raise MedicError(
                f"{other.path} and {run.path} have the same settings and other results: "
                "move one of them away, or give their folders apart"
            )
    return found


def column_of(result: Result, kind: str) -> str:
    """The column that a result belongs in."""
    names = result.settings["sources"] if kind == "source" else result.targets
    return ", ".join(names)


def _ordered_columns(results: Iterable[Result], kind: str) -> tuple[str, ...]:
    return tuple(sorted({column_of(result, kind) for result in results}))


def _row_key(result: Result, searched: bool) -> str:
    """What the runs of a row share; where hyper-parameters were searched, runs that differ in them compete."""
    settings = result.settings
    left_out = (*_SPREAD, "hparams_seed", *_DRAWN) if searched else _SPREAD
    kept = {name: value for name, value in said(settings).items() if name not in left_out}
    return repr(sorted({**kept, "partial": bool(settings.get("partial"))}.items(), key=lambda item: item[0]))


def said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say something: runs of an earlier version lack those that came later."""
    return {
        name: value
        for name, value in settings.items()
        if value not in (None, "none") and value != getattr(RunConfig, name, None)
    }


def row_labels(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A name for every row: its method, and the settings by which it differs from the others of that method."""
    by_method: dict[str, list[str]] = {}
    for key, settings in rows.items():
        by_method.setdefault(str(settings["method"]), []).append(key)
    labels = {}
    for method, keys in by_method.items():
        told = {key: said(rows[key]) for key in keys}
        names = dict.fromkeys(name for key in keys for name in told[key] if name not in _SPREAD)
        differing = [name for name in names if len({repr(told[key].get(name)) for key in keys}) > 1]
        for key in keys:
            shown = ", ".join(f"{name} {_short(rows[key].get(name))}" for name in differing)
            labels[key] = f"{method}: {shown}" if shown else method
    return labels


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)


def differences(results: Iterable[Result]) -> Iterable[str]:
    """What results that stand side by side do not share, and numbers depend on."""
    used = list(dict.fromkeys(results))
    for what, key in (("lists of images", "images"), ("commits", "commit"), ("files of weights", "weights")):
        found: dict[Any, Result] = {}
        for result in used:
            found.setdefault(
                (result.settings["dataset"] if key == "images" else None, result.environment.get(key)), result
            )
        datasets = {dataset for dataset, _ in found}
        if len(found) > len(datasets):
            some = ", ".join(
                f"{str(value)[:12]} ({result.path.name})" for (_, value), result in list(found.items())[:3]
            )
            yield f"these runs are of {len(found)} {what}: {some}"
