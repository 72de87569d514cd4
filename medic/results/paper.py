"""The numbers published in the paper."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from medic.errors import check_choice


class PaperCell(NamedTuple):
    """A cell of one of the paper's tables, for one metric."""

    metric: str
    variant: str
    method: str
    column: str


@cache
def published() -> Mapping[str, Mapping[PaperCell, float]]:
    """Return all numbers in the paper's tables, in percent, keyed by table and cell."""
    numbers: dict[str, dict[PaperCell, float]] = {}
    with (files("medic.results") / "paper.csv").open(encoding="utf-8") as file:
        for table, metric, variant, method, column, value in list(csv.reader(file))[1:]:
            numbers.setdefault(table, {})[PaperCell(metric, variant, method, column)] = float(value)
    return numbers


def published_table(name: str) -> Mapping[PaperCell, float]:
    """Return the numbers in one of the paper's tables."""
    return published()[check_choice("table of the paper", name, published())]
