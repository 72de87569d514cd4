"""Time and memory per iteration against the number of steps, from folders of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.load import method_title
from medic.analysis.result import MissingRuns, Result, number
from medic.results.compare import complete_value, row_settings
from medic.runs.run import Run

Floats = NDArray[np.float64]
PAPER_ITERATIONS = 5000
"""Number of iterations that the paper's times cover."""

ALIKE = 0.1
"""Maximum relative difference in images per iteration for an ERM run to be comparable."""


@dataclass(frozen=True)
class Cost(Result):
    """A method's cost at each of K numbers of steps, and ERM's cost with the same number of images per iteration."""

    method: str
    steps: NDArray[np.int64]
    """Numbers of steps, of shape (K,)."""
    seconds: Floats
    """Seconds per iteration, of shape (K,): the median over all but the first evaluation, then the mean over runs."""
    gib: Floats
    """Peak memory in GiB, of shape (K,): GPU memory, or process memory on a CPU."""
    erm_seconds: float
    """ERM's seconds per iteration, or NaN without an ERM run."""
    erm_gib: float
    images: int
    """Number of images per iteration."""
    erm_images: int
    """ERM's number of images per iteration, or 0 if there is no ERM run.

    It may differ from `images` because of rounding to whole tasks.
    """
    place: str
    """Name of the GPU, or "cpu"."""
    missing: str = ""
    """Reason why no ERM run is comparable, and options that train one. Empty if an ERM run is comparable."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row for ERM, then one row per number of steps."""
        costs = [("ERM", self.erm_seconds, self.erm_gib)]
        costs += [
            (f"{method_title(self.method)}, {count} step{'s' if count > 1 else ''}", seconds, gib)
            for count, seconds, gib in zip(self.steps.tolist(), self.seconds.tolist(), self.gib.tolist(), strict=True)
        ]
        return [
            {
                "run": label,
                "ms per iteration": number(1000 * seconds, 1),
                f"s in {PAPER_ITERATIONS}": number(PAPER_ITERATIONS * seconds, 0),
                "over ERM": number(seconds / self.erm_seconds),
                "peak GiB": number(gib),
                "peak over ERM": number(gib / self.erm_gib),
            }
            for label, seconds, gib in costs
        ]

    def notes(self) -> list[str]:
        """Describe the device and any missing ERM run."""
        where = "peak memory is GPU memory" if self.place != "cpu" else "peak memory is process memory"
        lines = [f"{self.images} images per iteration on {self.place}; {where}"]
        if self.erm_images not in (0, self.images):
            lines.append(f"ERM uses {self.erm_images} images per iteration")
        return [*lines, self.missing] if self.missing else lines


def measure(runs: Sequence[Run]) -> Cost:
    """Collect the cost of runs that differ only in the number of steps. Uses the longest such series."""
    series: dict[tuple[str, str, str, int], list[Run]] = {}
    runs = [run for run in runs if not run.config.soup]
    for run in runs:
        settings = {
            name: value for name, value in sorted(row_settings(run).items()) if name not in ("steps", "separate")
        }
        key = (run.method, repr(settings), repr((run.targets, run.config.data.sources)), _images(run))
        series.setdefault(key, []).append(run)
    longest = max(series.values(), key=lambda group: len({_steps(run) for run in group}), default=[])
    if len({_steps(run) for run in longest}) < 2:
        raise MissingRuns("runs that differ only in the number of steps", "time-memory")
    first = longest[0]
    counts = sorted({_steps(run) for run in longest})
    costs = [[_cost(run) for run in longest if _steps(run) == count] for count in counts]
    baselines = [run for run in runs if run.method == "erm"]
    like = [run for run in baselines if not _differences(run, first)]
    erm = np.mean([_cost(run) for run in like], axis=0) if like else np.full(2, np.nan)
    means = np.array([np.mean(several, axis=0) for several in costs])
    place = str(first.environment.get("gpu") or "cpu")
    return Cost(
        first.method, np.array(counts), means[:, 0], means[:, 1], float(erm[0]), float(erm[1]), _images(first),
        _images(like[0]) if like else 0, place, "" if like else _missing(baselines, first),
    )  # fmt: skip


def _differences(erm: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Return the settings that make an ERM run incomparable, with their values in both runs."""
    names = ("dataset", "target", "backbone", "objective", "iterations")
    pairs = {name: (complete_value(erm, name), complete_value(other, name)) for name in names}
    differences = {name: values for name, values in pairs.items() if values[0] != values[1]}
    if abs(_images(erm) / _images(other) - 1) >= ALIKE:
        differences["images"] = _images(erm), _images(other)
    return differences


def _missing(baselines: Sequence[Run], first: Run) -> str:
    """Explain how the closest ERM run differs, and which options train a comparable one."""
    wanted = {
        name: complete_value(first, name) for name in ("dataset", "target", "backbone", "objective", "iterations")
    }
    options = " ".join(f"--{name} {_text(value)}" for name, value in wanted.items() if value is not None)
    way = f"train one with --method erm {options} --images {_images(first)}"
    if not baselines:
        return f"found no ERM run: {way}"
    nearest = min(baselines, key=lambda run: len(_differences(run, first)))
    differences = _differences(nearest, first).items()
    differ = ", ".join(f"{name} ({_text(ours)}, not {_text(theirs)})" for name, (ours, theirs) in differences)
    return f"found no ERM run to compare with; the closest ({nearest.path.name}) differs in {differ}: {way}"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _steps(run: Run) -> int:
    return len(run.config.tasks.steps or [1])


def _images(run: Run) -> int:
    """Return the number of images per iteration."""
    return run.config.tasks.batch_size * int(sum(run.config.tasks.steps or [1]))


def _cost(run: Run) -> tuple[float, float]:
    """Return the seconds per iteration and the peak memory of a run.

    Iterations before the first evaluation are used only if there are no others, because they include warm-up, graph
    capture and compilation.
    """
    times = [float(record["step_time"]) for record in run.records if record.get("step_time")]
    times = times[1:] or times
    memory = [float(record["mem_gb"]) for record in run.records if record.get("mem_gb") is not None]
    return median(times) if times else float("nan"), max(memory, default=float("nan"))


@style.styled
def draw(result: Cost) -> Figure:
    """Draw time and memory against the number of steps, with a horizontal line for ERM."""
    figure = style.new_figure(2.2)
    panels = figure.subplots(1, 2)
    parts = (
        ("ms per iteration", 1000 * result.seconds, 1000 * result.erm_seconds),
        ("peak memory in GiB", result.gib, result.erm_gib),
    )
    colour = style.method_colours([result.method])[0]
    for index, (axes, (title, values, erm)) in enumerate(zip(panels, parts, strict=True)):
        axes.plot(result.steps, values, "o-", color=colour, label=method_title(result.method))
        if not np.isnan(erm):
            axes.axhline(erm, color=style.FIXED["erm"], linestyle="--", label="ERM")
        axes.set_xlabel("steps")
        axes.set_ylim(0, 1.15 * float(np.nanmax([*values, erm])))
        axes.set_xticks(result.steps)
        style.letter(axes, index, title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
