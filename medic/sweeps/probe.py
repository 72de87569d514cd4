"""A probe: the heads of all methods on the features of a frozen backbone, by all scores."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from medic.config.data import EACH
from medic.errors import MedicError
from medic.results.runs import Runs
from medic.runs.run import Run
from medic.sweeps.sweep import Job, Planner, Sweep

OSCR = "oscr/"
"""The prefix of the metrics that a probe compares scores by."""


def plan_probe(
    settings: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[Any]
) -> tuple[list[Job], dict[str, str]]:
    """Return the runs of a probe, and the methods that it leaves out with the reason of each.

    Methods that the user chose are never left out. By default, the methods are all that can train a head alone on these
    data.
    """
    from medic.methods import METHODS  # now, because it imports torch

    if settings.get("tune", "head") != "head":
        raise MedicError(f"a probe trains the head alone: leave out --tune {settings['tune']}")
    for name in ("method", "seed"):
        if name in settings:
            raise MedicError(f"a probe trains several {name}s: give them with --{name}s")
    shared = {"target": EACH, **settings, "tune": "head", "all_scores": True}
    target = shared.pop("target")
    planner, jobs, left_out = Planner(), list[Job](), dict[str, str]()
    for method in methods or METHODS:
        sweep = Sweep({**shared, "method": method}, {"target": [target], "seed": list(seeds)})
        try:
            jobs += sweep.jobs(planner)
        except MedicError as error:
            if methods or not jobs:  # the first one, ERM, works with everything
                raise
            left_out[method] = str(error)
    return jobs, left_out


def compare_scores(runs: Runs) -> list[dict[str, Any]]:
    """Return a row per method: the mean OSCR over targets by score, each over seeds, in percent."""
    methods: dict[str, dict[tuple[str, ...], list[Run]]] = {}
    for run in runs:
        methods.setdefault(run.method, {}).setdefault(run.targets, []).append(run)
    rows = []
    for method, targets in methods.items():
        by_target = [_mean_scores(several) for several in targets.values()]
        shared = [key for key in by_target[0] if all(key in scores for scores in by_target)]
        means = {key.removeprefix(OSCR): 100 * fmean(scores[key] for scores in by_target) for key in shared}
        rows.append({"method": method, **means})
    return rows


def _mean_scores(runs: Sequence[Run]) -> dict[str, float]:
    """Return the mean OSCR of runs by score."""
    metrics = [run.metrics for run in runs]
    keys = [key for key in metrics[0] if key.startswith(OSCR) and all(key in one for one in metrics)]
    return {key: fmean(one[key] for one in metrics) for key in keys}
