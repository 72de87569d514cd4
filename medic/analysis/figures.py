"""The paper's figures, and functions that select the runs for each figure from a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from medic.analysis.result import MissingRuns
from medic.methods import METHODS
from medic.runs.run import Run

_ORDER = ("erm", "mldg", "fish", "medic", "medic++")
_STEPS = (1, 3, 9)
_STEPS_TABLE = "tasks-per-step --save-features"


@dataclass(frozen=True)
class PaperFigure:
    """A figure in the paper."""

    name: str
    analysis: str
    about: str
    find: Callable[[Sequence[Run]], Sequence[Run]]
    """A function that selects the runs for the figure, or raises `MissingRuns`."""


def _common(run: Run) -> tuple[Any, ...]:
    """Return the settings that all runs in a figure must share."""
    data, config = run.config.data, run.config
    shared = (data.dataset, data.target, data.sources, data.known, config.model.backbone, config.optim.iterations)
    return repr(shared), run.trial


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_common(run), []).append(run)
    return list(groups.values())


def _usual(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with a one-vs-all head, saved features and their method's default tasks."""
    return [
        run
        for run in runs
        if run.method in _ORDER
        and run.config.objective.objective == "ce+ova"
        and run.config.evaluation.save_features
        and _as_defined(run)
    ]


def _as_defined(run: Run) -> bool:
    """Return whether a run uses its method's default splits and steps."""
    data, tasks = run.config.data, run.config.tasks
    grid = METHODS[run.method].grid.fitted(len(data.sources), len(data.known))
    own = (tasks.domain_splits, tasks.class_splits, tuple(tasks.steps))
    return own == (grid.domains, grid.classes, grid.sizes)


def methods_side_by_side(runs: Sequence[Run]) -> list[Run]:
    """Return one run per method in the paper's ablations, on the same problem. ERM and MEDIC++ are required."""
    best: dict[str, Run] = {}
    for group in _groups(_usual(runs)):
        by_method: dict[str, Run] = {}
        for run in group:
            by_method.setdefault(run.method, run)
        if {"erm", "medic++"} <= by_method.keys() and len(by_method) > len(best):
            best = by_method
    if not best:
        raise MissingRuns(
            "ERM and MEDIC++ runs on the same target with --objective ce+ova --save-features", "separation"
        )
    return [best[method] for method in _ORDER if method in best]


def erm_and_medic(runs: Sequence[Run]) -> list[Run]:
    """Return one ERM run and one MEDIC++ run on the same problem."""
    return [run for run in methods_side_by_side(runs) if run.method in ("erm", "medic++")]


def one_three_nine(runs: Sequence[Run]) -> list[Run]:
    """Return MEDIC++ runs with nine tasks in 1, 3 and 9 steps, on the same problem."""
    several = [run for run in runs if run.method == "medic++" and run.config.evaluation.save_features]
    most: dict[int, Run] = {}
    for group in _groups(several):
        by_steps: dict[int, Run] = {}
        for run in group:
            by_steps.setdefault(len(run.config.tasks.steps), run)
        wanted = {steps: by_steps[steps] for steps in _STEPS if steps in by_steps}
        most = max(most, wanted, key=len)
    if len(most) < len(_STEPS):
        missing = ", ".join(str(steps) for steps in _STEPS if steps not in most)
        raise MissingRuns(f"MEDIC++ runs with {missing} steps and --save-features", _STEPS_TABLE)
    return list(most.values())


def _all(runs: Sequence[Run]) -> Sequence[Run]:
    return runs


FIGURES = {
    name: PaperFigure(name, *entry)
    for name, entry in {
        "bias": ("boundary", "decision boundaries of a one-vs-all classifier", methods_side_by_side),
        "gradient": ("gradients", "agreement between task gradients during training", erm_and_medic),
        "expansion": ("expansion", "numerical check of the theory behind the gradient figure", _all),
        "norm": ("separation", "differences between classes, and matched task pairs", one_three_nine),
        "tsne": ("embed", "t-SNE of target features", methods_side_by_side),
        "office-range": ("openness", "OSCR against the number of known classes", _all),
        "time-memory": ("cost", "time and memory against the number of steps", _all),
    }.items()
}
"""The paper's figures that show measurements, by their labels in the paper."""
