"""What a table of the paper is made of: its rows and columns, the runs of its cells, and how they are put together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medic.data import benchmark
from medic.errors import MedicError
from medic.methods import METHODS
from medic.runs.config import RunConfig
from medic.sweeps.sweep import Job
from medic.tables.cells import Cell, Metric, pick_cell
from medic.tables.results import Result
from medic.tables.table import Row, Table, differences, seeds_of

Settings = Mapping[str, Any]

UNTRAINED = ("convnet", "mnist-cnn")
"""Backbones that begin with no weights in the paper."""


@dataclass(frozen=True)
class Line:
    """A row of a table: what the paper calls it, and the settings that make it; without any it is published only."""

    paper: str
    settings: Settings | None
    variant: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Where its metrics are read, by title, if not where the table says."""
    places: Mapping[str, Settings] = field(default_factory=dict)
    """Settings that it has in some columns alone, by their titles."""

    @property
    def label(self) -> str:
        """What it is called in our table."""
        return f"{self.paper}, {self.variant}" if self.variant else self.paper


@dataclass(frozen=True)
class Reproduction:
    """One table or figure: rows, columns, and what is read in its cells.

    A column has the settings of one run, or of several whose mean it shows.
    """

    name: str
    title: str
    settings: Settings
    lines: Sequence[Line]
    columns: Mapping[str, Sequence[Settings]]
    metrics: Mapping[str, Metric]
    figure: bool = False
    """Whether the paper has it as a picture, without numbers to put beside ours."""
    note: str = ""
    rule: str = "validation"
    """Which evaluation of a run counts."""

    def configs(self, asked: "Asked") -> dict[tuple[str, str], list[RunConfig]]:
        """The runs of every cell, by the label of its row and the title of its column."""
        self._check(asked.settings)
        found = {}
        for one in self.lines:
            if one.settings is None or (asked.methods and one.settings["method"] not in asked.methods):
                continue
            for title, several in self.columns.items():
                if asked.columns and title not in asked.columns:
                    continue
                own = {**one.settings, **one.places.get(title, {})}
                found[one.label, title] = [
                    _config({**self.settings, **column, **own, "seed": seed, **asked.settings})
                    for column in several
                    for seed in asked.seeds
                ]
        if "weights" in asked.settings and not any(config.weights for cell in found.values() for config in cell):
            raise MedicError(f"weights have no use in {self.name}, whose backbones begin with none: leave them out")
        return found

    def advice(self, cells: Mapping[tuple[str, str], Sequence[RunConfig]]) -> Iterable[str]:
        """What whoever starts these runs should know before they have taken their time."""
        configs = [config for each in cells.values() for config in each]
        if any(config.weights is None and _backbone(vars(config)) not in UNTRAINED for config in configs):
            yield (
                "without --weights backbones begin with random numbers, where the paper's began with ImageNet's: "
                "give a file, or --weights imagenet-v1"
            )

    def _check(self, settings: Settings) -> None:
        """Refuse settings that would make something else of a row or a column."""
        parts: list[Settings] = [self.settings, *(one.settings or {} for one in self.lines)]
        parts += [place for one in self.lines for place in one.places.values()]
        parts += [column for several in self.columns.values() for column in several]
        own = {"method", "seed", "target", "sources", *(name for part in parts for name in part)} - set(CHANGEABLE)
        for name in settings:
            if name in own:
                raise MedicError(
                    f"--{name.replace('_', '-')} would make other rows or columns of those of {self.name}: "
                    "choose among them with --methods, --only and --seeds"
                )

    def tabulate(self, cells: Mapping[tuple[str, str], Sequence[Job]], results: Mapping[str, Result]) -> Table:
        """The table of what is there; `results` are by name of the run."""
        titles = [title for title in self.columns if any(column == title for _, column in cells)]
        rows = []
        for one in self.lines:
            filled = {}
            for title, several in self.columns.items():
                if (jobs := cells.get((one.label, title))) is not None:
                    there = [results[job.name] for job in jobs if job.name in results]
                    filled[title] = self._cell(there, len(several))
            if filled or one.settings is None:
                method = "" if one.settings is None else str(one.settings["method"])
                rows.append(Row(one.label, method, filled, one.paper, one.variant, one.keys))
        used = [pick.result for row in rows for cell in row.cells.values() for pick in cell.picks]
        notes = (*([self.note] if self.note else []), *seeds_of(rows), *differences(used))
        return Table(tuple(titles), tuple(rows), self.metrics, notes, "column", self.rule, self.title)

    def _cell(self, results: Sequence[Result], parts: int) -> Cell:
        """The mean over all that a column stands for."""
        by_target: dict[tuple[str, ...], list[Result]] = {}
        for result in results:
            by_target.setdefault((*result.targets, *result.settings["sources"]), []).append(result)
        picks = [pick for runs in by_target.values() for pick in pick_cell(runs, self.rule).picks]
        return Cell(tuple(picks), parts)


def _backbone(settings: Settings) -> str:
    return str(settings.get("backbone") or benchmark(settings["dataset"]).backbone)


def _config(settings: dict[str, Any]) -> RunConfig:
    """A run with these settings, but for those of the whole table that it has no use for."""
    unused = {"weights"} if _backbone(settings) in UNTRAINED else set()
    if not settings.get("class_splits", METHODS[settings["method"]].grid.classes):
        unused.add("class_groups")
    if settings.get("batch_size"):
        unused.add("images")
    return RunConfig(**{name: value for name, value in settings.items() if name not in unused})


@dataclass(frozen=True)
class Asked:
    """What is wanted of a table: all of it with the authors' settings, unless told otherwise."""

    seeds: Sequence[int] = (0,)
    methods: Sequence[str] = ()
    columns: Sequence[str] = ()
    settings: Settings = field(default_factory=dict)
    """On top of the authors'."""


CHANGEABLE = ("backbone", "iterations", "batch_size", "images", "evaluate_every")
"""What may be given in place of the authors', for all cells."""
