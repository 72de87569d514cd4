"""Tables of results: rows of methods, columns of domains, a value with its error and its runs in every cell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from medic.errors import MedicError, check_choice
from medic.runs.config import RunConfig
from medic.tables.cells import DRAWN, FITTED, Cell, Metric, pick_cell
from medic.tables.results import ENVIRONMENT, Result, garbage_kept, runs_are, short

AVERAGE = "Avg"


METRICS = {"Acc": Metric("acc"), "H-score": Metric("hscore"), "OSCR": Metric("oscr")}
"""The paper's metrics, by the titles that it gives them."""
SELECTIONS = ("validation", "domainbed", "last", "leave-one-out", "oracle")
"""Which evaluation counts: see `medic.runs.selection`."""

_SPREAD = ("target", "sources", "seed", "trial_seed", "partial")
"""Settings in which the runs of a row differ."""
_USUAL = {each.name: each.default for each in fields(RunConfig)}
"""What settings are where nothing was said of them."""
_SPLITS = ("axes", "domain_splits", "class_splits", "repeat")
_FOLLOWING = {
    **dict.fromkeys(("head", "ova_scale", "score"), ("objective",)),
    **dict.fromkeys(("known", "unknown", "image_size", "store_size", "augment"), ("dataset",)),
    "threshold": ("objective", "score"),
    "hparams": ("objective", "penalty", "layer", "averaging", "sampling"),
    "momentum": ("optimizer",),
    "evaluate_every": ("iterations",),
    "steps": _SPLITS,
    "separate": (*_SPLITS, "steps"),
    "batch_size": _SPLITS,
}
"""Settings that may follow from others, which then tell rows apart without them."""

PROTOCOL = {
    "backbone": "backbones",
    "iterations": "numbers of iterations",
    "image_size": "sizes of images",
    "label_noise": "shares of wrong labels",
}
"""Settings that systems which are compared should share, and what a difference in them is called."""


@dataclass(frozen=True)
class Row:
    """A system in a table: its cells by column."""

    label: str
    method: str
    cells: Mapping[str, Cell]
    paper: str | None = None
    """What the paper calls the method."""
    variant: str = ""
    """What the paper calls this variant of the method, if it has several."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Where a metric is read from, by title, if not where the table's other rows have it."""

    def reads(self, title: str, metric: Metric) -> Metric:
        """What stands in this row for a metric of the table."""
        return metric._replace(key=self.keys.get(title, metric.key))

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
    """What the columns are: `target` or `source` domains, or a `column` of one of the paper's tables."""
    rule: str = "validation"
    """Which evaluation of a run counts."""
    title: str = ""


@garbage_kept()
def tabulate(
    results: Sequence[Result],
    rule: str = "validation",
    metrics: Mapping[str, Metric] = METRICS,
    by: str = "auto",
    missing: Sequence[Result] = (),
) -> Table:
    """Make a table of results: a row for every method, and for every other way that runs differ in.

    Columns are targets, or sources where every run has one source and several targets. Runs that are `missing`, without
    records, have their row and column too.
    """
    check_choice("selection", rule, SELECTIONS)
    if not results:
        raise MedicError("there are no finished runs to make a table of")
    results = [*results, *missing]
    kind = check_choice("columns", by, ["auto", "target", "source"])
    if kind == "auto":
        single = all(len(result.settings["sources"]) == 1 < len(result.targets) for result in results)
        kind = "source" if single else "target"
    searched = {result.settings["method"] for result in results if result.draw}
    every: dict[str, list[Result]] = {}
    for result in results:
        every.setdefault(_row_key(result, _spread(result, searched)), []).append(result)
    groups, pairs = (every, Pairs()) if kind == "source" else _without_pairs(every, searched)
    labels = row_labels({key: _labelled(runs[0]) for key, runs in groups.items()})
    columns = tuple(sorted({column_of(result, kind) for runs in groups.values() for result in runs}))
    rows = []
    for key, runs in groups.items():
        cells = {
            column: pick_cell(
                [run for run in runs if run.records and column_of(run, kind) == column],
                rule,
                [run for run in pairs.of_row.get(key, ()) if run.records and column in run.targets],
            )
            for column in columns
        }
        rows.append(Row(labels[key], str(runs[0].settings["method"]), cells))
    rows.sort(key=lambda row: row.label)
    used = [pick.result for row in rows for cell in row.cells.values() for pick in cell.picks]
    if not used:  # the only rule that may find nothing in finished runs
        raise MedicError(
            f"selection {rule!r} needs, beside every run, one for each source domain that has it as a second target: "
            "--target a with --target a b and --target a c, say"
        )
    there = {
        title: metric
        for title, metric in metrics.items()
        if any(cell.values(metric) for row in rows for cell in row.cells.values())
    }
    meaning = ["columns are the source domain; a cell is the mean over all targets"] if kind == "source" else []
    notes = (*meaning, *selected_by(rule), *seeds_of(rows), *pairs.notes(rule), *mixed_datasets(used, kind),
             *differences(used))  # fmt: skip
    return Table(columns, tuple(rows), there, notes, kind, rule)


@dataclass(frozen=True)
class Pairs:
    """Runs that keep a source domain as a second target, by the row of those with one target that they belong to."""

    of_row: Mapping[str, Sequence[Result]] = field(default_factory=dict)
    lost: int = 0
    """How many may belong to several rows."""

    def notes(self, rule: str) -> Iterable[str]:
        """What a reader should know of them."""
        count = sum(map(len, self.of_row.values()))
        if count and rule != "leave-one-out":
            yield f"{runs_are(count, ' with two targets')} left out, for the selection 'leave-one-out'"
        if self.lost:
            yield f"{runs_are(self.lost, ' with two targets')} left out, which may belong to several rows"


def _without_pairs(every: Mapping[str, list[Result]], searched: Iterable[str]) -> tuple[dict[str, list[Result]], Pairs]:
    """Take the runs with two targets out of the rows, wherever there is a row with one target that they belong to.

    The tasks of a run with fewer source domains may be others, so that settings which follow their number may differ.
    """
    alone = {key for key, runs in every.items() if any(len(run.targets) == 1 for run in runs)}

    def loose(run: Result) -> str:
        return _row_key(run, (*_spread(run, searched), *FITTED))

    rows: dict[str, list[str]] = {}
    for key in alone:
        rows.setdefault(loose(every[key][0]), []).append(key)
    groups: dict[str, list[Result]] = {}
    pairs: dict[str, list[Result]] = {}
    lost = 0
    for key, runs in every.items():
        for run in runs:
            candidates = [key] if key in alone else rows.get(loose(run), [])
            if len(run.targets) != 2 or not candidates:
                groups.setdefault(key, []).append(run)
            elif len(candidates) == 1:
                pairs.setdefault(candidates[0], []).append(run)
            else:
                lost += 1
    return groups, Pairs(pairs, lost)


def metric_keys(results: Iterable[Result]) -> dict[str, float]:
    """The keys of all numbers that results have, and what each is multiplied with: 100 for shares of a target."""
    found = {"domainbed": 100.0}
    for result in results:
        record = result.records[-1]
        found |= {key: 1.0 for key, value in record.items() if _is_number(value) and not key.startswith("env")}
        found |= {key: metric_scale(key) for key, value in record["target"].items() if _is_number(value)}
    return found


def metric_scale(key: str) -> float:
    """What a metric of a target is multiplied with to be shown: all are shares, but for the threshold of a score."""
    return 1.0 if key == "threshold" else 100.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_row(table: Table, label: str) -> Row:
    """A row by its label, by the name of its method if that has one row, or by a part of its label with settings."""
    named = [row for row in table.rows if row.label == label] or [row for row in table.rows if row.method == label]
    found = named or [row for row in table.rows if ":" in label and label in row.label]
    if len(found) > 1:
        raise MedicError(f"{label!r} is {len(found)} rows: give one of {'; '.join(repr(row.label) for row in found)}")
    if not found:
        check_choice("row", label, [row.label for row in table.rows])
    return found[0]


def column_of(result: Result, kind: str) -> str:
    """The column that a result belongs in."""
    names = result.settings["sources"] if kind == "source" else result.targets
    return ", ".join(names)


def _spread(result: Result, searched: Iterable[str]) -> tuple[str, ...]:
    """Settings in which runs of a row differ: hyper-parameters too, where they were searched, and runs compete."""
    return (*_SPREAD, "hparams_seed", *DRAWN) if result.settings["method"] in searched else _SPREAD


def _row_key(result: Result, left_out: Sequence[str]) -> str:
    """What the runs of a row share."""
    kept = {name: value for name, value in said(_labelled(result)).items() if name not in left_out}
    return repr(sorted((*kept.items(), ("partial", bool(result.settings.get("partial"))))))


def _labelled(result: Result) -> Mapping[str, Any]:
    """What tells rows apart: the settings, and which weights the runs began with."""
    weights = result.environment.get("weights")
    return result.settings if weights is None else {**result.settings, "weights": str(weights)[:8]}


def said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say something: runs of an earlier version lack those that came later."""
    usual = _USUAL.get
    return {name: value for name, value in settings.items() if value not in (None, "none") and value != usual(name)}


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
        named = _leading(differing, list(told.values()))
        values = {name: _apart([rows[key].get(name) for key in keys]) for name in named}
        for position, key in enumerate(keys):
            shown = ", ".join(f"{name} {_short(values[name][position])}" for name in named)
            labels[key] = f"{method}: {shown}" if shown else method
    return labels


def _leading(differing: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the settings in which rows differ those that do not follow from others of them, as a run's help has them."""

    def follows(name: str) -> bool:
        leaders = [leader for leader in _FOLLOWING.get(name, ()) if leader in differing]
        values = {repr([row.get(leader) for leader in leaders]) for row in rows}
        return bool(leaders) and len(values) == len({repr([row.get(one) for one in (*leaders, name)]) for row in rows})

    order = {name: position for position, name in enumerate(_USUAL)}
    return sorted((name for name in differing if not follows(name)), key=lambda name: order.get(name, len(order)))


def _apart(values: list[Any]) -> list[Any]:
    """The values of a setting in rows; of those that are numbers by name, the numbers that are not in all the same."""
    if not all(isinstance(value, Mapping) for value in values):
        return values
    names = dict.fromkeys(name for value in values for name in value)
    differing = [name for name in names if len({repr(value.get(name)) for value in values}) > 1]
    return [{name: value.get(name, "–") for name in differing} for value in values]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_short(part)}" for name, part in value.items())
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)


def selected_by(rule: str) -> Iterable[str]:
    """How evaluations were selected, where that is not as usual."""
    if rule != "validation":
        looks = ", which looks at the target: no result" if rule == "oracle" else ""
        yield f"of each run the evaluation that {rule!r} selects{looks}"


def seeds_of(rows: Iterable[Row]) -> Iterable[str]:
    """Over how many seeds the means of rows are, where they are over several, and which are over fewer."""
    cells = {(row.label, column): len({pick.trial for pick in cell.picks}) for row in rows
             for column, cell in row.cells.items() if cell.picks}  # fmt: skip
    most = max(cells.values(), default=0)
    if most > 1:
        fewer = [f"{label}, {column} ({count})" for (label, column), count in cells.items() if count < most]
        some = f"; over fewer: {'; '.join(fewer[:3])}{'; …' if len(fewer) > 3 else ''}" if fewer else ""
        yield f"means are over {most} seeds, ± their standard error{some}"


def _drawn_images(settings: Mapping[str, Any]) -> Any:
    """What runs have to share if their images are to be the same: some benchmarks are drawn anew for every seed."""
    from medic.data import BENCHMARKS  # which imports torch: most tables need not wait for it

    bench = BENCHMARKS.get(settings["dataset"])
    return settings["dataset"], settings["seed"] if bench is not None and bench.seeded else None


def differences(results: Iterable[Result]) -> Iterable[str]:
    """What results that stand side by side do not share, and numbers depend on."""
    used = list(dict.fromkeys(results))
    # A package that was installed knows its version alone; runs of earlier versions do not know their precision.
    shared = (("lists of images", ("images",), _drawn_images), ("commits", ("commit", "medic"), lambda settings: None),
              ("files of weights", ("weights",), lambda settings: settings["backbone"]),
              ("precisions", ("precision",), lambda settings: None))  # fmt: skip
    for what, keys, per in shared:
        values = [(result, value) for result in used for value in _first(result.environment, keys)]
        if len({value for _, value in values}) < 2:
            continue
        found: dict[Any, Result] = {}
        for result, value in values:
            found.setdefault((per(result.settings), value), result)
        if len(found) > len({group for group, _ in found}):
            some = ", ".join(f"{short(value)} ({result.path.name})" for (_, value), result in list(found.items())[:3])
            yield f"these runs are of {len(found)} {what}: {some}"
    unknown = [result.path.name for result in used if not result.environment]
    if unknown:
        yield f"{runs_are(len(unknown))} of an unknown commit: {unknown[0]} has no {ENVIRONMENT} that can be read"
    for name, what in PROTOCOL.items():
        by_method: dict[str, dict[str, set[str]]] = {}
        for result in used:
            methods = by_method.setdefault(result.settings["dataset"], {})
            methods.setdefault(result.settings["method"], set()).add(_short(result.settings.get(name) or "none"))
        for methods in by_method.values():
            if any(values != next(iter(methods.values())) for values in methods.values()):  # else rows' labels tell
                told = {value: method for method, values in methods.items() for value in values}
                some = ", ".join(f"{value} ({method})" for value, method in list(told.items())[:3])
                yield f"these methods have different {what}: {some}"


def _first(environment: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    """The first of some values that an environment has, alone, or none if it has none of the keys."""
    there = [environment[key] for key in keys if key in environment]
    return [next((value for value in there if value is not None), None)] if there else []


def mixed_datasets(results: Iterable[Result], kind: str) -> Iterable[str]:
    """Which columns of domains have results of several datasets, whose domains have one name."""
    found: dict[str, set[str]] = {}
    for result in results:
        found.setdefault(column_of(result, kind), set()).add(str(result.settings["dataset"]))
    for column, datasets in found.items():
        if len(datasets) > 1:
            yield f"{column!r} is of {len(datasets)} datasets: {', '.join(sorted(datasets))}; give their folders apart"
