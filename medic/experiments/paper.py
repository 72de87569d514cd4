"""The numbers that the paper publishes, and when one of ours may stand beside one of them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

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
    with (files("medic.experiments") / "paper.csv").open() as file:
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
    """One table of the paper: its numbers, and the conditions under which it was made."""

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


class Protocol(NamedTuple):
    """What a table of the paper was made of."""

    dataset: str
    backbone: str
    known: int | None
    """How many classes are known; None where all are."""
    validation: Sequence[str] = ("cell", "official")


PROTOCOLS: Mapping[str, Protocol] = {
    **dict.fromkeys(
        (
            "pacs-resnet50", "tasks-per-step", "parameter-sharing", "classifiers", "partial-classes",
            "single-domain", "paradigms", "confidence-sketch",
        ),
        Protocol("pacs", "resnet50", 6),
    ),
    "pacs-gfnet": Protocol("pacs", "gfnet_h_ti", 6),
    "digitsdg-convnet": Protocol("digits-dg", "convnet", 6),
    "domainnet-resnet50": Protocol("domainnet", "resnet50", 100),
}  # fmt: skip
"""Of every table but DomainBed's, which has a protocol per dataset."""


class Mismatch(NamedTuple):
    """Why a number of ours may not be compared with one of the paper's: in a word, and in a few."""

    word: str
    detail: str


def mismatch(table: str, settings: Mapping[str, Any], weights: str | None) -> Mismatch | None:
    """Why a run may not be compared with a table of the paper; None if it may. `weights` is the hash of its file."""
    protocol = PROTOCOLS.get(table)
    if protocol is None:
        wrong = settings["validation"] != "domainbed"
        return Mismatch("protocol", f"validation {settings['validation']!r}, not DomainBed's") if wrong else None
    checks = (
        ("data", settings["dataset"], [protocol.dataset]),
        ("backbone", settings["backbone"], [protocol.backbone]),
        ("classes", f"{len(settings['known'])} known", [f"{protocol.known} known"]),
        ("validation", settings["validation"], protocol.validation),
        ("noise", settings.get("label_noise"), [None]),
    )
    for word, ours, theirs in checks:
        if ours not in theirs:
            return Mismatch(word, f"{word}: {ours}, and the paper's is {theirs[0]}")
    if protocol.backbone != "convnet" and weights is None:
        return Mismatch("weights", "weights: random, and the paper's are ImageNet's")
    return None
