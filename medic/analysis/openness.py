"""OSCR against the number of known classes, from folders of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.load import method_title
from medic.analysis.result import MissingRuns, Result, number
from medic.config.config import Config
from medic.metrics import METRICS
from medic.results.cells import Cell, pick_cell
from medic.results.compare import row_settings
from medic.results.wording import runs_are
from medic.runs.run import Run

Floats = NDArray[np.float64]
_SPLIT = frozenset({"known", "unknown", "split", "partial"})
"""Settings in which the runs of a row differ, besides targets and seeds."""
_TABLE = "officehome-openness"
_ELSEWHERE = "of another dataset"
_ALONE = "with settings that exist with one number of known classes"
_UNSHARED = "of targets that some number of known classes lacks"


@dataclass(frozen=True)
class Row:
    """The OSCR of a method for K numbers of known classes."""

    label: str
    method: str
    targets: tuple[str, ...]
    """Targets that every number of known classes has."""
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
    left_out: Mapping[str, int]
    """Numbers of runs that are left out, by reason."""

    def rows(self) -> list[dict[str, str]]:
        """Return a row per method, with a column per number of known classes."""
        counts = sorted({int(count) for row in self.table for count in row.known})
        return [{"method": row.label, **{f"{count} known": _at(row, count) for count in counts}} for row in self.table]

    def notes(self) -> list[str]:
        """Name the selection, the targets and the runs that are left out."""
        by_row = {row.label: ", ".join(row.targets) for row in self.table}
        over = next(iter(by_row.values())) if len(set(by_row.values())) == 1 else "targets"
        lines = [f"OSCR in percent on {self.dataset}, model selection by source validation, mean over {over} and seeds"]
        if over == "targets":
            each = "; ".join(f"{label}: {targets}" for label, targets in by_row.items())
            lines.append(f"methods have different targets, so they cannot be compared ({each})")
        return lines + [f"{runs_are(count)} left out: {reason}" for reason, count in self.left_out.items()]


def _at(row: Row, count: int) -> str:
    place = np.flatnonzero(row.known == count)
    return number(float(row.oscr[place[0]]), 1) if len(place) else "–"


def measure(runs: Sequence[Run]) -> Openness:
    """Average OSCR by method and number of known classes; runs that differ in other settings are other rows."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in sorted(row_settings(run).items()) if name not in _SPLIT}
        groups.setdefault((run.config.data.dataset, run.method, repr(settings)), []).append(run)
    several = {key: group for key, group in groups.items() if len({_known(run) for run in group}) > 1}
    if not several:
        raise MissingRuns("runs of a method with two numbers of known classes", _TABLE)
    by_dataset: dict[str, int] = {}
    for (dataset, _, _), group in several.items():
        by_dataset[dataset] = by_dataset.get(dataset, 0) + len(group)
    chosen = max(by_dataset, key=lambda dataset: by_dataset[dataset])
    rows, left_out = [], dict.fromkeys((_ELSEWHERE, _ALONE, _UNSHARED), 0)
    for key, group in groups.items():
        shared = _shared_targets(group)
        compared = [run for run in group if run.targets in shared]
        if key[0] != chosen:
            left_out[_ELSEWHERE] += len(group)
        elif key not in several:
            left_out[_ALONE] += len(group)
        else:
            left_out[_UNSHARED] += len(group) - len(compared)
            rows += [_row(compared)] if compared else []
    if not rows:
        raise MissingRuns("runs of a method with two numbers of known classes and the same target", _TABLE)
    first = next(group[0] for (dataset, _, _), group in several.items() if dataset == chosen)
    classes = len(first.config.data.known) + len(first.config.data.unknown or ())
    order = list(style.FIXED)
    rows.sort(key=lambda row: (order.index(row.method) if row.method in order else len(order), row.label))
    return Openness(tuple(rows), chosen, classes, {reason: count for reason, count in left_out.items() if count})


def _known(run: Run) -> int:
    return len(run.config.data.known)


def _shared_targets(runs: Sequence[Run]) -> set[tuple[str, ...]]:
    """Return the targets that every number of known classes has: means over different targets cannot be compared."""
    targets: dict[int, set[tuple[str, ...]]] = {}
    for run in runs:
        targets.setdefault(_known(run), set()).add(run.targets)
    return set.intersection(*targets.values())


def _row(runs: Sequence[Run]) -> Row:
    by_count: dict[int, dict[tuple[str, ...], list[Run]]] = {}
    for run in runs:
        by_count.setdefault(_known(run), {}).setdefault(run.targets, []).append(run)
    counts = sorted(by_count)
    cells = []
    for count in counts:
        by_target = by_count[count]
        picks = tuple(pick for group in by_target.values() for pick in pick_cell(group, "validation").picks)
        cells.append(Cell(picks, len(by_target)))
    metric = METRICS["oscr"]
    means = [np.nan if (mean := cell.mean(metric)) is None else mean for cell in cells]
    errors = [np.nan if (error := cell.error(metric)) is None else error for cell in cells]
    label = method_title(runs[0].method) + (", cw" if _by_classes(runs[0].config) else "")
    targets = tuple(sorted(", ".join(target) for target in by_count[counts[0]]))
    return Row(label, runs[0].method, targets, np.array(counts), np.array(means), np.array(errors),
               np.array([len(cell.picks) for cell in cells]))  # fmt: skip


def _by_classes(config: Config) -> bool:
    """Whether tasks differ in classes alone, although there are several domains: the paper's `cw`."""
    domain_splits, class_splits = config.tasks.domain_splits or 1, config.tasks.class_splits or 1
    return domain_splits == 1 < class_splits and len(config.data.sources) > 1


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
