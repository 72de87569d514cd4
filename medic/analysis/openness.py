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
"""Settings that may vary within a row, in addition to targets and seeds."""
_TABLE = "officehome-openness"
_ELSEWHERE = "from another dataset"
_ALONE = "settings trained with only one number of known classes"
_UNSHARED = "targets without a run for every number of known classes"


@dataclass(frozen=True)
class Row:
    """A method's OSCR at each of K different numbers of known classes."""

    label: str
    method: str
    targets: tuple[str, ...]
    """Targets that have runs with every number of known classes."""
    known: NDArray[np.int64]
    """Numbers of known classes, of shape (K,)."""
    oscr: Floats
    """Mean OSCR in percent over targets and seeds, of shape (K,)."""
    error: Floats
    """Standard error over seeds, of shape (K,), or NaN with one seed."""
    runs: NDArray[np.int64]
    """Numbers of runs, of shape (K,)."""


@dataclass(frozen=True)
class Openness(Result):
    """The OSCR of several methods against the number of known classes."""

    table: tuple[Row, ...]
    dataset: str
    classes: int
    """Number of classes in the dataset, known and unknown."""
    left_out: Mapping[str, int]
    """Number of runs left out, by reason."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row per method, with one column per number of known classes."""
        counts = sorted({int(count) for row in self.table for count in row.known})
        return [{"method": row.label, **{f"{count} known": _at(row, count) for count in counts}} for row in self.table]

    def notes(self) -> list[str]:
        """Describe the model selection, the targets and the runs that are left out."""
        by_row = {row.label: ", ".join(row.targets) for row in self.table}
        over = next(iter(by_row.values())) if len(set(by_row.values())) == 1 else "targets"
        lines = [f"OSCR in percent on {self.dataset}, selected by source validation, averaged over {over} and seeds"]
        if over == "targets":
            each = "; ".join(f"{label}: {targets}" for label, targets in by_row.items())
            lines.append(f"the methods have different targets, so they are not comparable ({each})")
        return lines + [f"{runs_are(count)} left out: {reason}" for reason, count in self.left_out.items()]


def _at(row: Row, count: int) -> str:
    place = np.flatnonzero(row.known == count)
    return number(float(row.oscr[place[0]]), 1) if len(place) else "–"


def measure(runs: Sequence[Run]) -> Openness:
    """Average OSCR by method and number of known classes. Runs with different settings form separate rows."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in sorted(row_settings(run).items()) if name not in _SPLIT}
        groups.setdefault((run.config.data.dataset, run.method, repr(settings)), []).append(run)
    several = {key: group for key, group in groups.items() if len({_known(run) for run in group}) > 1}
    if not several:
        raise MissingRuns("runs of one method with at least two numbers of known classes", _TABLE)
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
        raise MissingRuns("runs of one method with at least two numbers of known classes and the same target", _TABLE)
    first = next(group[0] for (dataset, _, _), group in several.items() if dataset == chosen)
    classes = len(first.config.data.known) + len(first.config.data.unknown or ())
    order = list(style.FIXED)
    rows.sort(key=lambda row: (order.index(row.method) if row.method in order else len(order), row.label))
    return Openness(tuple(rows), chosen, classes, {reason: count for reason, count in left_out.items() if count})


def _known(run: Run) -> int:
    return len(run.config.data.known)


def _shared_targets(runs: Sequence[Run]) -> set[tuple[str, ...]]:
    """Return the targets shared by all numbers of known classes. Means over different targets are not comparable."""
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
    """Return whether tasks split only classes although there are several domains (`cw` in the paper)."""
    domain_splits, class_splits = config.tasks.domain_splits or 1, config.tasks.class_splits or 1
    return domain_splits == 1 < class_splits and len(config.data.sources) > 1


@style.styled
def draw(result: Openness) -> Figure:
    """Draw one line per method. Variants that split only classes are dashed."""
    figure = style.new_figure(2.8)
    axes = figure.subplots()
    methods = list(dict.fromkeys(row.method for row in result.table))
    colours = dict(zip(methods, style.method_colours(methods), strict=True))
    for row in result.table:
        look = "s--" if row.label.endswith("cw") else "o-"
        thick = 2.0 if row.method == "medic++" else 1.2
        colour, error = colours[row.method], np.nan_to_num(row.error)
        axes.errorbar(row.known, row.oscr, error, fmt=look, color=colour, label=row.label, linewidth=thick)
    axes.set_xlabel(f"known classes (of {result.classes})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("OSCR in %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, columnspacing=1)
    return figure
