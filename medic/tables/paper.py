"""The numbers that the paper publishes."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from medic.errors import check_choice


class Published(NamedTuple):
    """One number of the paper, in percent."""

    table: str
    metric: str
    variant: str
    method: str
    column: str
    value: float


@cache
def published() -> tuple[Published, ...]:
    """Every number in the paper's tables."""
    with (files("medic.tables") / "paper.csv").open() as file:
        return tuple(
            Published(table, metric, variant, method, column, float(value))
            for table, metric, variant, method, column, value in list(csv.reader(file))[1:]
        )


@cache
def paper_tables() -> tuple[str, ...]:
    """The names of the paper's tables."""
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
        return tuple(dict.fromkeys(number.metric for number in self._numbers))

    @property
    def methods(self) -> tuple[tuple[str, str], ...]:
        """The methods and variants of its rows, in order."""
        return tuple(dict.fromkeys((number.method, number.variant) for number in self._numbers))

    @property
    def columns(self) -> tuple[str, ...]:
        """The titles of its columns, the average last."""
        return tuple(dict.fromkeys(number.column for number in self._numbers))

    def value(self, metric: str, method: str, column: str, variant: str = "") -> float | None:
        """A number of the table, in percent, or None where it has none."""
        return _index(self.name).get((metric, variant, method, column))

    @property
    def _numbers(self) -> Sequence[Published]:
        return [number for number in published() if number.table == self.name]


@cache
def _index(table: str) -> Mapping[tuple[str, str, str, str], float]:
    return {
        (number.metric, number.variant, number.method, number.column): number.value
        for number in published()
        if number.table == table
    }
