"""The paper's numbers next to ours."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from medic.metrics import METRICS, Metric
from medic.results.conditions import Conditions, Difference, Differences
from medic.results.paper import PaperCell, published_table
from medic.results.paper_tables import reproduction
from medic.results.reproduction import Line, Reproduction
from medic.results.table import AVERAGE, Reference, Row, Table
from medic.results.tabulate import value_text
from medic.runs.run import Run


def paper_metrics(name: str) -> tuple[Metric, ...]:
    """Return the metrics in one of the paper's tables."""
    published_table(name)  # raises for a figure, which has no numbers to compare with
    return reproduction(name).metrics


class AgainstPaper:
    """The paper's values for the cells of a table, and the conditions in which our runs differ."""

    def __init__(self, table: Table, paper: Reproduction) -> None:
        self._table, self._paper = table, paper
        self._published = published_table(paper.name)
        self._lines = {(line.paper, line.variant): line for line in paper.lines}
        self._conditions = _conditions(paper.name)
        self._titles = _column_titles(table, paper)
        self._differences_by_cell: dict[tuple[str, str], Differences] = {}

    def __call__(self, metric: Metric, row: Row, column: str) -> Reference | None:
        """Return the paper's value for a cell, and the reasons why ours is not comparable with it."""
        title = AVERAGE if column == AVERAGE else self._titles.get(column)
        if row.paper is None or title is None or not self._titles:
            return None
        value = self._published.get(PaperCell(metric.paper, row.variant, row.paper, title))
        return None if value is None else Reference(value, self._obstacles(metric, row, column))

    def notes(self) -> Iterator[str]:
        """Yield the differences between the table's runs and the paper's."""
        cells = [self._differences(row, column) for row in self._table.rows for column in self._titles]
        texts = dict.fromkeys(
            f"{name} {value_text(diff.ours, 'none')} ({diff.source}: {value_text(diff.theirs, 'none')})"
            for cell in cells
            for name, diff in cell.items()
        )
        if texts:
            more = f", and {len(texts) - 8} more" if len(texts) > 8 else ""
            yield f"differences from the paper: {', '.join(list(texts)[:8])}{more}"

    def _obstacles(self, metric: Metric, row: Row, column: str) -> tuple[str, ...]:
        columns = list(self._titles) if column == AVERAGE else [column]
        names = {name: None for one in columns for name in self._differences(row, one)}
        if row.reads(metric).key != "hscore":
            names.pop("threshold", None)  # no other metric depends on it
        complete = {self._titles.get(one) for one in self._table.columns} == set(self._paper.columns)
        if column == AVERAGE and not complete:
            names["columns"] = None
        return tuple(names)

    def _line(self, row: Row) -> Line:
        return self._lines[row.paper or "", row.variant]

    def _differences(self, row: Row, column: str) -> Differences:
        """Return a cell's conditions that differ from the paper's."""
        if row.paper is None or column not in row.cells:
            return {}
        key = row.label, column
        if key not in self._differences_by_cell:
            differences: dict[str, Difference] = {}
            picks = row.cells[column].picks
            if picks and self._table.rule != self._paper.rule:
                differences["selection"] = Difference(self._table.rule, self._paper.rule, "paper")
            for pick in picks:
                differences |= self._conditions.differences(self._line(row), self._titles[column], pick.run)
            self._differences_by_cell[key] = differences
        return self._differences_by_cell[key]


def beside_paper(table: Table, name: str) -> tuple[Table, AgainstPaper]:
    """Match a table's rows to those of one of the paper's tables; return the table and the paper's values."""
    paper = reproduction(name)
    conditions, titles = _conditions(name), _column_titles(table, paper)
    rows, ambiguous = [], []
    for row in table.rows:
        lines = [line for line in paper.lines if line.settings["method"] == row.method]
        runs = [(title, pick.run) for column, title in titles.items() for pick in row.cells[column].picks]
        matching = lines if len(lines) < 2 else _matching(lines, runs, conditions)
        if len(matching) == 1:
            (line,) = matching
            row = replace(row, paper=line.paper, variant=line.variant, keys=line.keys)
        elif lines:
            ambiguous.append(row.label)
        rows.append(row)
    named = replace(table, rows=tuple(rows))
    against = AgainstPaper(named, paper)
    notes = [*table.notes, *against.notes()]
    if any(metric.key == "hscore/oracle-10" for metric in table.metrics):
        title = METRICS["hscore/oracle-10"].paper
        notes.append(f"{title} uses the best of ten thresholds on the target, as in MEDIC's code")
    if not titles:
        notes.append(f"no column matches a column of {name}: create the table with `medic reproduce {name}`")
    elif ambiguous:
        notes.append(
            f"several rows of {name} match the settings of {'; '.join(ambiguous)}: create the table with "
            f"`medic reproduce {name}`"
        )
    return replace(named, notes=tuple(notes)), against


def _conditions(name: str) -> Conditions:
    """Return the paper's settings for a table under both protocols. On ties, the authors' code comes first."""
    return Conditions({protocol: reproduction(name, protocol=protocol) for protocol in ("authors", "paper")})


def _matching(lines: Sequence[Line], runs: Sequence[tuple[str, Run]], conditions: Conditions) -> list[Line]:
    """Return a method's rows that match the runs in every setting in which these rows differ."""
    settings = [line.settings for line in lines]
    names = {name for one in settings for name in one}
    telling = {name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)}
    return [
        line
        for line in lines
        if runs and not any(telling & conditions.differences(line, title, run).keys() for title, run in runs)
    ]


def _column_titles(table: Table, paper: Reproduction) -> dict[str, str]:
    """Return the paper's titles for those of our columns that the paper's table contains."""
    if table.kind == "column":
        return {column: column for column in table.columns if column in paper.columns}
    titles: dict[str, str] = {}
    for column in table.columns:
        name, value = ("target", column) if table.kind == "target" else ("sources", [column])
        for title, settings in paper.columns.items():
            if len(settings) == 1 and settings[0].get(name) == value:
                titles.setdefault(column, title)
    return titles
