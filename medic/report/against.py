"""The paper's numbers beside ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from medic.report.formats import Reference
from medic.tables.cells import Cell, Metric, Pick
from medic.tables.conditions import Conditions, Unlike
from medic.tables.paper import PaperTable
from medic.tables.paper_tables import reproduction
from medic.tables.reproduction import Line, Reproduction
from medic.tables.table import AVERAGE, Row, Table

_KEYS = {
    "Acc": Metric("acc"),
    "H-score": Metric("hscore/oracle-10"),
    "OSCR": Metric("oscr"),
    "conf_p": Metric("conf_p"),
    "conf_n": Metric("conf_n"),
}
"""The paper's H-score is at the best of ten thresholds on the target."""


def paper_metrics(name: str) -> Mapping[str, Metric]:
    """The metrics of a table of the paper, by title."""
    return {title: _KEYS[title] for title in PaperTable(name).metrics}


class AgainstPaper:
    """What stands in the paper for a cell of a table of ours; where the conditions differ, which of them."""

    def __init__(self, table: Table, made: Reproduction) -> None:
        self._table, self._made = table, made
        self._paper = PaperTable(made.name)
        self._lines = {(one.paper, one.variant): one for one in made.lines}
        self._conditions = Conditions(made)
        self._titles = {column: title for column in table.columns if (title := _title(column, table, made))}
        self._unlike: dict[tuple[str, str], Unlike] = {}

    def __call__(self, metric: str, row: Row, column: str) -> Reference | None:
        """The paper's value, and why ours may not be compared with it, if it may not."""
        title = AVERAGE if column == AVERAGE else self._titles.get(column)
        if row.paper is None or title is None or not self._titles:
            return None
        value = self._paper.value(metric, row.paper, title, row.variant)
        return None if value is None else Reference(value, self._obstacles(metric, row, column))

    def notes(self) -> Iterable[str]:
        """What differs in the runs of the table, and how."""
        found: dict[str, None] = {}
        for row in self._table.rows:
            for column in self._titles:
                for name, (ours, theirs) in self._cell(row, column).items():
                    found[f"{name} {_short(ours)} (the paper's: {_short(theirs)})"] = None
        if found:
            more = f", and {len(found) - 8} more" if len(found) > 8 else ""
            yield f"not as in the paper: {', '.join(list(found)[:8])}{more}"

    def _obstacles(self, metric: str, row: Row, column: str) -> tuple[str, ...]:
        if self._line(row).settings is None:
            return ("published",)
        columns = list(self._titles) if column == AVERAGE else [column]
        words = {name: None for one in columns for name in self._cell(row, one)}
        if row.reads(metric, self._table.metrics[metric]).key != "hscore":
            words.pop("threshold", None)  # others do not depend on it
        if column == AVERAGE and not self._complete:
            words["columns"] = None
        return tuple(words)

    @property
    def _complete(self) -> bool:
        """Whether the columns are the paper's, all of them and no others."""
        return {self._titles.get(column) for column in self._table.columns} == set(self._made.columns)

    def _line(self, row: Row) -> Line:
        return self._lines[row.paper or "", row.variant]

    def _cell(self, row: Row, column: str) -> Unlike:
        """What differs in the runs of a cell."""
        if row.paper is None:
            return {}
        key = row.label, column
        if key not in self._unlike:
            found: dict[str, tuple[Any, Any]] = {}
            picks = row.cells.get(column, Cell()).picks
            if picks and self._table.rule != self._made.rule:
                found["selection"] = self._table.rule, self._made.rule
            for pick in picks:
                found |= self._conditions.unlike(self._line(row), self._titles[column], pick.result)
            self._unlike[key] = found
        return self._unlike[key]


def beside_paper(table: Table, name: str) -> tuple[Table, AgainstPaper]:
    """A table with its rows named as in the paper's, wherever settings tell which they are, and what stands there."""
    made = reproduction(name)
    conditions = Conditions(made)
    rows, unknown = [], []
    for row in table.rows:
        candidates = [one for one in made.lines if one.settings is not None and one.settings["method"] == row.method]
        lines = _alike(row, candidates, table, made, conditions)
        if len(lines) == 1:
            row = replace(row, paper=lines[0].paper, variant=lines[0].variant, keys=lines[0].keys)
        elif candidates:
            unknown.append(row.label)
        rows.append(row)
    named = replace(table, rows=tuple(rows))
    against = AgainstPaper(named, made)
    notes = [*table.notes, *against.notes()]
    if table.metrics.get("H-score") == _KEYS["H-score"]:
        notes.append("H-score is at the best of ten thresholds on the target, as the paper's")
    if not any(_title(column, table, made) for column in table.columns):
        notes.append(f"no column here is one of {name}: `medic reproduce {name}` makes the table")
    elif unknown:
        notes.append(
            f"which rows of {name} these are cannot be told from their settings: {'; '.join(unknown)}; "
            f"`medic reproduce {name}` makes them"
        )
    return replace(named, notes=tuple(notes)), against


def _alike(
    row: Row, candidates: Sequence[Line], table: Table, made: Reproduction, conditions: Conditions
) -> Sequence[Line]:
    """Of several lines of a method those that a row may be, by the settings that tell these lines apart."""
    if len(candidates) < 2:
        return candidates
    settings = [one.settings or {} for one in candidates]
    names = {name for one in settings for name in one}
    telling = {name for name in names if len({repr(one.get(name)) for one in settings}) > 1}
    picked = [(title, pick) for column in table.columns if (title := _title(column, table, made))
              for pick in row.cells.get(column, Cell()).picks]  # fmt: skip

    def fits(line: Line, title: str, pick: Pick) -> bool:
        return not telling & conditions.unlike(line, title, pick.result).keys()

    return [line for line in candidates if picked and all(fits(line, *one) for one in picked)]


def _title(column: str, table: Table, made: Reproduction) -> str | None:
    """What the paper's table calls a column of ours, or None if it has no such column."""
    if table.kind == "column":
        return column if column in made.columns else None
    wanted = ("target", column) if table.kind == "target" else ("sources", [column])
    for title, several in made.columns.items():
        if len(several) == 1 and several[0].get(wanted[0]) == wanted[1]:
            return title
    return None


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)
