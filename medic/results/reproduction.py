"""Reproduction of one of the paper's tables: rows, columns, the runs for each cell, and the finished table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medic.data import benchmark
from medic.errors import MedicError, check_choice
from medic.metrics import Metric
from medic.models.hub import describe_weights, has_v1
from medic.results import notes
from medic.results.cells import Cell, pick_cell
from medic.results.table import Row, Table
from medic.runs.run import Run

Settings = Mapping[str, Any]
Columns = Mapping[str, Sequence[Settings]]
"""Columns by title, each with the settings of one run, or of several runs that a cell averages."""
Place = tuple[str, str]
"""A cell, identified by its row label and column title."""

UNTRAINED = ("convnet", "mnist-cnn")
"""Backbones that the paper trains from scratch."""
CHANGEABLE = {"backbone", "iterations", "batch_size", "images", "evaluate_every", "lr"}
"""Table settings that options may override in all cells."""
SEARCHED = {"lr", "weight_decay", "batch_size", "images"}
"""Settings that a draw in DomainBed's search overrides."""


@dataclass(frozen=True)
class Line:
    """A row of one of the paper's tables, with the settings of its runs."""

    paper: str
    settings: Settings
    variant: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Maps the table's metric keys to the keys that this row reads instead."""
    places: Mapping[str, Settings] = field(default_factory=dict)
    """Additional settings for some columns, keyed by column title."""
    tuned: bool = False
    """Whether the authors tuned the hyperparameters, so that DomainBed's search must not change them."""

    @property
    def label(self) -> str:
        """The label of the row in our table."""
        return f"{self.paper}, {self.variant}" if self.variant else self.paper


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper: rows, columns and metrics."""

    name: str
    title: str
    settings: Settings
    lines: Sequence[Line]
    columns: Columns
    metrics: tuple[Metric, ...]
    figure: bool = False
    """Whether the paper shows a figure, which has no numbers to compare with."""
    note: str = ""
    rule: str = "validation"
    """Rule that selects one evaluation per run."""

    def runs(
        self,
        seeds: Sequence[int] = (0,),
        methods: Sequence[str] = (),
        columns: Sequence[str] = (),
        settings: Settings | None = None,
    ) -> dict[Place, list[dict[str, Any]]]:
        """Return the settings of the runs for each cell, optionally for some `methods` and `columns` only.

        `settings` override the table's settings.
        """
        overrides = settings or {}
        self._check(overrides)
        cells: dict[Place, list[dict[str, Any]]] = {}
        for line in self.lines:
            if methods and line.settings["method"] not in methods:
                continue
            for title, several in self.columns.items():
                if columns and title not in columns:
                    continue
                own = {**line.settings, **line.places.get(title, {})}
                line_overrides = {
                    name: value for name, value in overrides.items() if not (line.tuned and name == "hparams_seed")
                }
                if line_overrides.get("hparams_seed"):
                    own = {name: value for name, value in own.items() if name not in SEARCHED}
                cells[line.label, title] = [
                    _usable({**self.settings, **column, **own, "seed": seed, **line_overrides})
                    for column in several
                    for seed in seeds
                ]
        if "weights" in overrides and not any("weights" in run for cell in cells.values() for run in cell):
            raise MedicError(f"{self.name} trains its backbones from scratch: omit --weights")
        return cells

    def column(self, name: str) -> str:
        """Return the exact title of the column that matches a title (case-insensitive) or a domain name."""
        for title, several in self.columns.items():
            domains = [run.get("target") or run.get("sources") for run in several]
            if name.casefold() == title.casefold() or domains in ([name], [[name]]):
                return title
        return check_choice("column", name, self.columns, f"of {self.name}")

    def warnings(self, cells: Mapping[Place, Sequence[Settings]]) -> Iterator[str]:
        """Yield reasons why the runs cannot reach the paper's numbers, shown before they start."""
        runs = [run for cell in cells.values() for run in cell]
        if any(run.get("weights") is None and _backbone(run) not in UNTRAINED for run in runs):
            named = " or --weights imagenet-v1" if all(map(has_v1, {_backbone(run) for run in runs})) else ""
            yield (
                "without --weights, backbones start from random weights, but the paper starts from ImageNet weights: "
                f"use --weights FILE{named}"
            )

    def weights(self, cells: Mapping[Place, Sequence[Settings]]) -> Iterator[str]:
        """Yield a line for each backbone, with its weights file, the source of the weights, and the preprocessing."""
        backbones = dict.fromkeys((_backbone(run), run.get("image_size")) for cell in cells.values() for run in cell)
        yield from (f"weights of {describe_weights(name, size)}" for name, size in backbones)

    def _check(self, overrides: Settings) -> None:
        """Raise an error for settings that would change the table's rows or columns."""
        parts: list[Settings] = [self.settings, *(line.settings for line in self.lines)]
        parts += [place for line in self.lines for place in line.places.values()]
        parts += [column for several in self.columns.values() for column in several]
        own = {"method", "seed", "target", "sources", *(name for part in parts for name in part)} - CHANGEABLE
        for name, value in overrides.items():
            if name in own and not (name in self.settings and all(part.get(name, value) == value for part in parts)):
                raise MedicError(
                    f"--{name.replace('_', '-')} would change the rows or columns of {self.name}: "
                    "use --methods, --only and --seeds to select some of them"
                )

    def tabulate(self, cells: Mapping[Place, Sequence[str]], runs: Mapping[str, Run]) -> Table:
        """Return the table of finished runs; `cells` maps cells to run names, and `runs` maps names to runs."""
        titles = tuple(title for title in self.columns if any(column == title for _, column in cells))
        rows = []
        for line in self.lines:
            filled = {
                title: self._cell([runs[name] for name in cells[line.label, title] if name in runs], len(several))
                for title, several in self.columns.items()
                if (line.label, title) in cells
            }
            if filled:
                rows.append(Row(line.label, str(line.settings["method"]), filled, line.paper, line.variant, line.keys))
        used = [run for row in rows for run in row.runs]
        about = (
            *notes.learning(rows),
            *([self.note] if self.note else []),
            *notes.scores(rows, self.metrics),
            *notes.target_labels(self.metrics),
            *notes.seeds(rows),
            *notes.differences(used),
        )
        return Table(titles, tuple(rows), self.metrics, about, "column", self.rule, self.title)

    def _cell(self, runs: Sequence[Run], parts: int) -> Cell:
        """Return the selected evaluations for all targets in a column."""
        by_target: dict[tuple[str, ...], list[Run]] = {}
        for run in runs:
            by_target.setdefault((*run.targets, *run.config.data.sources), []).append(run)
        return Cell(tuple(p for group in by_target.values() for p in pick_cell(group, self.rule).picks), parts)


def _backbone(settings: Settings) -> str:
    return str(settings.get("backbone") or benchmark(settings["dataset"]).backbone)


def _usable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings without those that do not apply to it."""
    unused = {"weights"} if _backbone(settings) in UNTRAINED else set()
    if settings.get("batch_size"):
        unused.add("images")
    return {name: value for name, value in settings.items() if name not in unused}
