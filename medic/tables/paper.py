"""The numbers that the paper publishes."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from medic.errors import check_choice


class Published(NamedTuple):
    """A number of the paper, in percent."""

    table: str
    metric: str
    variant: str
    method: str
    column: str
    value: float


@cache
def published() -> tuple[Published, ...]:
    """Return every number in the paper's tables."""
    with (files("medic.tables") / "paper.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    return tuple(Published(*names, float(value)) for *names, value in rows)  # type: ignore[call-arg, arg-type]


@cache
def paper_tables() -> tuple[str, ...]:
    """Return the names of the paper's tables."""
    return tuple(dict.fromkeys(number.table for number in published()))


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    name: str

    def __post_init__(self) -> None:
        check_choice("table of the paper", self.name, paper_tables())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The titles of its metrics."""
        return tuple(dict.fromkeys(metric for metric, *_ in _index(self.name)))

    @property
    def methods(self) -> tuple[tuple[str, str], ...]:
        """The methods and variants of its rows, in order."""
        return tuple(dict.fromkeys((method, variant) for _, variant, method, _ in _index(self.name)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The titles of its columns, the average last."""
        return tuple(dict.fromkeys(column for *_, column in _index(self.name)))

    def value(self, metric: str, method: str, column: str, variant: str = "") -> float | None:
        """Return a number of the table in percent, or None if the table lacks it."""
        return _index(self.name).get((metric, variant, method, column))


@cache
def _index(table: str) -> Mapping[tuple[str, str, str, str], float]:
    """Return the numbers of a table by metric, variant, method and column."""
    return {(n.metric, n.variant, n.method, n.column): n.value for n in published() if n.table == table}
