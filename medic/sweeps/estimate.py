"""Estimates of the time that runs will take, from finished runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from medic.sweeps.sweep import Job
from medic.tables.results import Result

Kind = tuple[Any, ...]


class Estimate(NamedTuple):
    """Seconds that runs will take one after the other, and whether every run has finished runs of its kind."""

    seconds: float
    similar: bool


def estimate(jobs: Iterable[Job], results: Iterable[Result]) -> Estimate | None:
    """Estimate the time of runs from finished ones; None if no finished run recorded its time.

    A run of `n` iterations costs a fixed time plus `n` times that of an iteration: both are means over the finished
    runs of the same method, backbone and dataset, or over all if none is.
    """
    costs: dict[Kind | None, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        if seconds := result.seal.seconds:
            for kind in (_kind(result.settings), None):
                costs[kind].append(_cost(result, seconds))
    if not costs:
        return None
    total, similar = 0.0, True
    for job in jobs:
        kind = _kind(job.settings)
        similar &= kind in costs
        fixed, iteration = map(fmean, zip(*costs.get(kind, costs[None]), strict=True))
        total += fixed + job.settings["iterations"] * iteration
    return Estimate(total, similar)


def _cost(result: Result, seconds: float) -> tuple[float, float]:
    """Return the seconds of a run besides its iterations, and those of an iteration."""
    steps = [0, *(record["step"] for record in result.records)]
    training = sum(
        (step - before) * record["step_time"]
        for record, before, step in zip(result.records, steps, steps[1:], strict=False)
    )
    return max(0.0, seconds - training), training / steps[-1]


def _kind(settings: Mapping[str, Any]) -> Kind:
    return settings["method"], settings["backbone"], settings["dataset"]
