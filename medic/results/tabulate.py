"""Build a table from runs: group them into rows and columns, and select one evaluation per run."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medic.errors import MedicError, check_choice
from medic.metrics import DEFAULT, Metric, find_metric
from medic.results import notes
from medic.results.cells import Cell, pick_cell
from medic.results.compare import agree, complete_value, row_settings
from medic.results.table import Row, Table
from medic.results.wording import runs_are
from medic.runs.run import Run
from medic.utils.memory import garbage_collection_paused

SELECTIONS = ("validation", "evaluation", "domainbed", "last", "leave-one-out", "oracle")
"""Rules that select an evaluation; see `medic.evaluation.selection`."""


@garbage_collection_paused()
def tabulate(
    runs: Sequence[Run],
    rule: str = "validation",
    metrics: Sequence[Metric] = DEFAULT,
    by: str = "auto",
    missing: Sequence[Run] = (),
) -> Table:
    """Return a table of runs, with one row per combination of method and user settings.

    Columns are targets, or sources if every run has one source and several targets. `missing` runs have no results yet,
    but still add their rows and columns.
    """
    check_choice("selection", rule, SELECTIONS)
    kind = check_choice("columns", by, ["auto", "target", "source"])
    if not runs:
        raise MedicError("no finished runs: pass the --output of a sweep or training, and wait for a run to finish")
    runs = [*runs, *missing]
    if kind == "auto":
        single = all(len(run.config.data.sources) == 1 < len(run.targets) for run in runs)
        kind = "source" if single else "target"
    groups = group_runs(runs)
    ambiguous = 0 if kind == "source" else _take_pairs(groups)
    groups = [group for group in groups if group.runs]
    columns = tuple(sorted({column_of(run, kind) for group in groups for run in group.runs}))
    rows = [
        Row(label, group.method, {column: group.cell(column, kind, rule) for column in columns})
        for group, label in zip(groups, row_labels(groups), strict=True)
    ]
    rows.sort(key=lambda row: row.label)
    used = [run for row in rows for run in row.runs]
    if not used:  # only leave-one-out may select nothing from finished runs
        raise MedicError(
            f"selection {rule!r} requires an additional run per source domain, with that domain as a second target: "
            "for --target a, also train with --target a b and --target a c"
        )
    used_metrics = tuple(m for m in metrics if any(cell.values(m) for row in rows for cell in row.cells.values()))
    pairs = sum(len(group.pairs) for group in groups)
    about = (
        *(["columns are source domains; each cell is the mean over all targets"] if kind == "source" else []),
        *notes.learning(rows),
        *notes.selection(rule),
        *notes.scores(rows, used_metrics),
        *notes.target_labels(used_metrics),
        *notes.averaging(rows),
        *notes.seeds(rows),
        *notes.unmeasured(rows, used_metrics),
        *_pair_notes(0 if rule == "leave-one-out" else pairs, ambiguous),
        *notes.mixed_datasets((column_of(run, kind), run) for run in used),
        *notes.differences(used),
    )
    return Table(columns, tuple(rows), used_metrics, about, kind, rule)


@dataclass(eq=False)
class Group:
    """The runs in one row."""

    method: str
    settings: Mapping[str, Any]
    """Settings that may distinguish this row from other rows of its method."""
    runs: list[Run] = field(default_factory=list)
    pairs: list[Run] = field(default_factory=list)
    """Runs with a source domain as a second target, for the `leave-one-out` selection rule."""

    def cell(self, column: str, kind: str, rule: str) -> Cell:
        """Return the selected evaluations for a column."""
        runs = [run for run in self.runs if run.records and column_of(run, kind) == column]
        return pick_cell(runs, rule, [run for run in self.pairs if run.records and column in run.targets])

    def may_join(self, row: "Group") -> bool:
        """Return whether these runs, which have one source domain fewer, may belong to `row`."""
        return self.method == row.method and agree(self.runs[0], row.runs[0], self.settings)


def column_of(run: Run, kind: str) -> str:
    """Return the title of a run's column."""
    return ", ".join(run.config.data.sources if kind == "source" else run.targets)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs by method and by the settings that the user set for any run of that method.

    If hyperparameters were drawn, only the settings of the drawn runs are used, so that draws and defaults compete in
    one row.
    """
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    groups: dict[str, Group] = {}
    for method, method_runs in methods.items():
        setting_names = {
            name for run in [run for run in method_runs if run.draw] or method_runs for name in row_settings(run)
        }
        if all(run.config.run.protocol is None for run in method_runs):
            setting_names |= _DEFAULTS  # these differ between versions
        names = [
            *(name for name in method_runs[0].identity if name in setting_names),
            *sorted(setting_names - method_runs[0].identity.keys()),
        ]
        for run in method_runs:
            # Settings that differ between the runs in a soup are not settings of the soup.
            settings = {
                name: complete_value(run, name) for name in names if not run.config.soup or name in row_settings(run)
            }
            groups.setdefault(f"{method} {settings}", Group(method, settings)).runs.append(run)
    return list(groups.values())


def _take_pairs(groups: Sequence[Group]) -> int:
    """Assign two-target runs to the matching row with one target, if any.

    Runs that match several rows are dropped. Returns the number of dropped runs.
    """
    rows = [group for group in groups if any(len(run.targets) == 1 for run in group.runs)]
    ambiguous = 0
    for group in groups:
        candidates = [group] if group in rows else [row for row in rows if group.may_join(row)]
        if not candidates:
            continue
        pairs = [run for run in group.runs if len(run.targets) == 2]
        group.runs = [run for run in group.runs if len(run.targets) != 2]
        if len(candidates) == 1:
            candidates[0].pairs += pairs
        else:
            ambiguous += len(pairs)
    return ambiguous


def _pair_notes(unused: int, ambiguous: int) -> Iterator[str]:
    if unused:
        yield f"{runs_are(unused, ' with two targets')} left out: only selection 'leave-one-out' uses such runs"
    if ambiguous:
        yield f"{runs_are(ambiguous, ' with two targets')} left out: several rows match"


_DEFAULTS = {"batch_norm", "iterations"}
"""Settings whose defaults changed between versions, so that they separate rows even if the user did not set them."""


def row_labels(groups: Sequence[Group]) -> list[str]:
    """Return a label for each row: its method, and the settings that differ between that method's rows."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for group in groups:
        methods.setdefault(group.method, []).append(group.settings)
    telling = {
        method: {name: _differing([row.get(name) for row in rows]) for name in _differing(rows)}
        for method, rows in methods.items()
    }
    for method, rows in methods.items():
        telling[method] = {
            name: parts for name, parts in telling[method].items() if not _implied(name, telling[method], rows)
        }
    labels = []
    for group in groups:
        formatted = [
            _label_part(name, group.settings[name], parts)
            for name, parts in telling[group.method].items()
            if name in group.settings
        ]
        labels.append(f"{group.method}: {', '.join(dict.fromkeys(formatted))}" if formatted else group.method)
    return labels


def _implied(name: str, names: Container[str], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the dataset determines a setting, or the known classes determine `unknown` or `partial`.

    `names` are the settings in the labels. Known classes count as they appear there.
    """
    leading = ("dataset", "known") if name in ("unknown", "partial") else ("dataset",)
    pairs = [
        {(value_text(row.get(one)), repr(row.get(name))) for row in rows}
        for one in leading
        if one in names and one != name
    ]
    return any(len(values) == len({value for value, _ in values}) for values in pairs)


def _differing(values: Sequence[Any]) -> list[str]:
    """Return the keys in which mappings differ, or an empty list if some values are not mappings."""
    if not all(isinstance(value, Mapping) for value in values):
        return []
    names = dict.fromkeys(name for value in values for name in value)
    return [name for name in names if any(value.get(name) != values[0].get(name) for value in values)]


def _label_part(name: str, value: Any, parts: Sequence[str]) -> str:
    """Return a short string for a setting; for a mapping, only the `parts` that differ between rows."""
    if name in ("known", "unknown", "partial") and isinstance(value, str):  # the name of a drawn split
        return f"split {value}"
    return f"{name} {value_text({part: value.get(part) for part in parts} if parts else value, 'none')}"


def value_text(value: Any, missing: str = "–") -> str:
    """Return a short string for a setting's value."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={value_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or missing if len(value) <= 10 else f"{len(value)} values"
    return f"{value:.3g}" if isinstance(value, float) else missing if value is None else str(value)


def metric_keys(runs: Iterable[Run]) -> list[str]:
    """Return the keys of all numeric results, in order of first occurrence."""
    keys = {"domainbed": None}
    for run in runs:
        record = run.records[-1]
        keys |= {key: None for key, value in record.items() if _is_number(value) and not key.startswith("env")}
        keys |= {key: None for key, value in record["target"].items() if _is_number(value)}
    return list(keys)


def find_metrics(keys: Sequence[str], known: Sequence[Metric], runs: Sequence[Run]) -> list[Metric]:
    """Return metrics by key, using the titles of `known` metrics where available."""
    available, by_key = metric_keys(runs), {metric.key: metric for metric in known}
    if runs:
        for key in keys:
            check_choice("metric", key, available)
    return [by_key.get(key) or find_metric(key) for key in keys]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_row(table: Table, label: str) -> Row:
    """Return the row that matches a label, a method, or part of a label that contains a colon.

    Raises an error if several rows match.
    """
    matches = (
        [row for row in table.rows if row.label == label]
        or [row for row in table.rows if row.method == label]
        or [row for row in table.rows if ":" in label and label in row.label]
    )
    if len(matches) > 1:
        labels = "; ".join(repr(row.label) for row in matches)
        raise MedicError(f"{label!r} matches {len(matches)} rows: use one of {labels}")
    if not matches:
        check_choice("row", label, [row.label for row in table.rows])
    return matches[0]
