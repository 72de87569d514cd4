"""OSCR against the number of known classes, from folders of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.of_runs import method_title
from medic.analysis.result import MissingRuns, Result, number
from medic.metrics import METRICS
from medic.tables.cells import Cell, pick_cell
from medic.tables.results import Result as RunResult

Floats = NDArray[np.float64]
_SPLIT = frozenset({"known", "unknown", "split", "partial"})
"""Settings in which the runs of a row differ, besides targets and seeds."""


@dataclass(frozen=True)
class Row:
    """The OSCR of a method for K numbers of known classes."""

    label: str
    method: str
    known: NDArray[np.int64]
    """Numbers of known classes (K,)."""
    oscr: Floats
    """Mean OSCR in percent (K,), over targets and seeds."""
    error: Floats
    """Standard error over seeds (K,); NaN with one seed."""
    runs: NDArray[np.int64]
    """Numbers of runs (K,)."""


@dataclass(frozen=True)
class Openness(Result):
    """OSCR of several methods against the number of known classes."""

    table: tuple[Row, ...]
    dataset: str
    classes: int
    """All classes of the dataset, known and unknown."""
    left_out: int
    """Runs whose settings exist with one number of known classes alone."""

    def rows(self) -> list[dict[str, str]]:
        """Return a row per method, with a column per number of known classes."""
        counts = sorted({int(count) for row in self.table for count in row.known})
        return [{"method": row.label, **{f"{count} known": _at(row, count) for count in counts}} for row in self.table]

    def notes(self) -> list[str]:
        """Name the selection and the runs that are left out."""
        found = [
            f"OSCR in percent on {self.dataset}, model selection by source validation, mean over targets and seeds"
        ]
        if self.left_out:
            found.append(f"{self.left_out} runs are left out: their settings exist with one number of known classes")
        return found


def _at(row: Row, count: int) -> str:
    place = np.flatnonzero(row.known == count)
    return number(float(row.oscr[place[0]]), 1) if len(place) else "–"


def measure(results: Sequence[RunResult]) -> Openness:
    """Average OSCR by method and number of known classes; runs that differ in other settings are other rows."""
    groups: dict[tuple[str, str, str], list[RunResult]] = {}
    for result in results:
        given = {name: value for name, value in sorted(result.given.items()) if name not in _SPLIT}
        groups.setdefault((str(result.settings["dataset"]), result.method, repr(given)), []).append(result)
    several = {key: runs for key, runs in groups.items() if len({_known(run) for run in runs}) > 1}
    if not several:
        raise MissingRuns("runs of a method with two numbers of known classes", "officehome-openness")
    by_dataset: dict[str, int] = {}
    for (dataset, _, _), runs in several.items():
        by_dataset[dataset] = by_dataset.get(dataset, 0) + len(runs)
    chosen = max(by_dataset, key=lambda dataset: by_dataset[dataset])
    rows = [_row(runs) for (dataset, _, _), runs in several.items() if dataset == chosen]
    first = next(runs[0] for (dataset, _, _), runs in several.items() if dataset == chosen)
    classes = len(first.settings["known"]) + len(first.settings["unknown"] or ())
    used = sum(int(row.runs.sum()) for row in rows)
    order = list(style.FIXED)
    rows.sort(key=lambda row: (order.index(row.method) if row.method in order else len(order), row.label))
    return Openness(tuple(rows), chosen, classes, len(results) - used)


def _known(result: RunResult) -> int:
    return len(result.settings["known"])


def _row(runs: Sequence[RunResult]) -> Row:
    by_count: dict[int, dict[tuple[str, ...], list[RunResult]]] = {}
    for run in runs:
        by_count.setdefault(_known(run), {}).setdefault(run.targets, []).append(run)
    most = max(map(len, by_count.values()))
    # Means over different targets cannot be compared.
    counts = sorted(count for count, found in by_count.items() if len(found) == most)
    cells = []
    for count in counts:
        by_target = by_count[count]
        picks = tuple(pick for group in by_target.values() for pick in pick_cell(group, "validation").picks)
        cells.append(Cell(picks, len(by_target)))
    metric = METRICS["oscr"]
    means = [np.nan if (mean := cell.mean(metric)) is None else mean for cell in cells]
    errors = [np.nan if (error := cell.error(metric)) is None else error for cell in cells]
    settings = runs[0].settings
    label = method_title(runs[0].method) + (", cw" if _by_classes(settings) else "")
    return Row(label, runs[0].method, np.array(counts), np.array(means), np.array(errors),
               np.array([len(cell.picks) for cell in cells]))  # fmt: skip


def _by_classes(settings: Mapping[str, Any]) -> bool:
    """Whether tasks differ in classes alone, although there are several domains: the paper's `cw`."""
    splits = (settings.get("domain_splits") or 1, settings.get("class_splits") or 1)
    return splits[0] == 1 < splits[1] and len(settings["sources"]) > 1


@style.styled
def draw(result: Openness) -> Figure:
    """Draw a line per method; variants that split classes alone are dashed."""
    figure = style.new_figure(2.8)
    axes = figure.subplots()
    methods = list(dict.fromkeys(row.method for row in result.table))
    colours = dict(zip(methods, style.method_colours(methods), strict=True))
    for row in result.table:
        look = "s--" if row.label.endswith("cw") else "o-"
        thick = 2.0 if row.method == "medic++" else 1.2
        colour, error = colours[row.method], np.nan_to_num(row.error)
        axes.errorbar(row.known, row.oscr, error, fmt=look, color=colour, label=row.label, linewidth=thick)
    axes.set_xlabel(f"known classes, of {result.classes}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("OSCR in %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, columnspacing=1)
    return figure
