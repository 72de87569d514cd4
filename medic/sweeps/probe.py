"""Probes, which train every method's head on frozen backbone features and compare all scores."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from medic.config.data import EACH
from medic.config.settings import check_settings
from medic.errors import MedicError, warn
from medic.results.runs import Runs
from medic.runs.run import Run
from medic.sweeps.sweep import Job, Planner, Sweep

OUTPUT = "probe"
"""Default output folder. A probe trains many runs, which would crowd the tables of `runs`."""
OSCR = "oscr/"
"""Prefix of the metric keys used to compare scores."""


def plan_probe(
    settings: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[Any]
) -> tuple[list[Job], dict[str, str]]:
    """Return the runs for a probe, and the methods it skips with the reason for each.

    By default, a probe trains every method that can train a head on this data and skips the others. Methods chosen by
    the user are never skipped. Each domain in `target` is the target in turn.
    """
    from medic.methods import METHODS  # here, because it imports torch
    from medic.models import is_custom

    settings = check_settings(settings)
    if settings.get("tune", "head") != "head":
        raise MedicError(f"a probe trains only the head: omit --tune {settings['tune']}")
    for name in ("method", "seed"):
        if name in settings:
            raise MedicError(f"a probe trains several {name}s: use --{name}s")
    shared = {"target": EACH, "output": OUTPUT, **settings, "tune": "head", "all_scores": True}
    target = shared.pop("target")
    targets = target if isinstance(target, list) else [target]
    planner, jobs, left_out = Planner(), list[Job](), dict[str, str]()
    for method in methods or METHODS:
        sweep = Sweep({**shared, "method": method}, {"target": targets, "seed": list(seeds)})
        try:
            jobs += sweep.jobs(planner)
        except MedicError as error:
            if methods:
                raise MedicError(f"method {method!r}: {str(error).partition(': use')[0]}: omit it") from error
            if not jobs:  # the first method, ERM, works with all data
                raise
            left_out[method] = str(error)
    model = jobs[0].config.model
    if model.weights is None and not is_custom(model.backbone):
        warn(f"backbone {model.backbone} has random weights: use --weights FILE to probe pretrained ones")
    return jobs, left_out


def compare_scores(runs: Runs) -> list[dict[str, Any]]:
    """Return one row per method, with OSCR in percent for each score, averaged over seeds and then over targets.

    A method whose runs on a target are missing has no means, because they would not be comparable.
    """
    methods: dict[str, dict[tuple[str, ...], list[Run]]] = {}
    for run in runs:
        methods.setdefault(run.method, {}).setdefault(run.targets, []).append(run)
    everywhere = {run.targets for run in runs}
    rows: list[dict[str, Any]] = []
    for method, targets in methods.items():
        if targets.keys() < everywhere:
            rows.append({"method": method})
            continue
        by_target = [_mean_scores(several) for several in targets.values()]
        shared = [key for key in by_target[0] if all(key in scores for scores in by_target)]
        means = {key.removeprefix(OSCR): 100 * fmean(scores[key] for scores in by_target) for key in shared}
        rows.append({"method": method, **means})
    return rows


def _mean_scores(runs: Sequence[Run]) -> dict[str, float]:
    """Return the runs' mean OSCR for each score."""
    metrics = [run.metrics for run in runs]
    keys = [key for key in metrics[0] if key.startswith(OSCR) and all(key in measured for measured in metrics)]
    return {key: fmean(measured[key] for measured in metrics) for key in keys}
