"""Execute the missing runs in a sweep, or print the plan and its estimated time."""

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from medic.config.config import Config
from medic.errors import MedicError, counted
from medic.results.runs import find_runs
from medic.runs.run import Run
from medic.sweeps.executors import Executor
from medic.sweeps.overview import Overview
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Job
from medic.utils.progress import duration


def launch(
    jobs: Sequence[Job], executor: Executor, retries: int | None = None, dry_run: bool = False, quiet: bool = False
) -> Schedule:
    """Execute the missing runs or, with `dry_run`, print the plan.

    A failed run is retried up to `retries` times (default: once).
    """
    if retries is not None and not executor.waits:
        raise MedicError("--retries requires an executor that waits for runs: rerun the same command to retry")
    if not jobs:
        raise MedicError("the sweep has no runs: every setting in the span requires at least one value")
    schedule = Schedule(jobs, 1 if retries is None else retries)
    executor = dataclasses.replace(executor, output=schedule.output, device=needed_device(jobs))
    if dry_run:
        print((executor.preview(schedule.waiting) or plan(schedule, executor.slots)).rstrip())
    elif schedule.waiting:
        schedule.run(executor, Overview(quiet))
    return schedule


def needed_device(jobs: Sequence[Job]) -> str:
    """Return `cpu` if every run is set to use the CPU, otherwise `auto`."""
    return "cpu" if all(job.config.execution.device == "cpu" for job in jobs) else "auto"


def plan(schedule: Schedule, slots: int) -> str:
    """Return one line per run with its state, and the estimated time for `slots` runs at a time."""
    waiting = schedule.waiting
    running = [job.name for job in waiting if job.directory.busy]
    states = {
        **{job.name: "started" for job in waiting if job.directory.started},
        **dict.fromkeys(schedule.finished, "finished"),
        **dict.fromkeys(schedule.damaged, "damaged"),
        **dict.fromkeys(running, "running"),
    }
    width = max(map(len, schedule.titles))
    lines = [f"{name:<{width}}  {states.get(name, 'to do'):<8}  {title}" for name, title in schedule.titles.items()]
    counts = f"{counted(len(schedule.jobs), 'run')}: {len(schedule.finished)} finished, {len(waiting)} to do"
    counts += f" ({len(running)} of them running elsewhere)" if running else ""
    lines.append(counts + (f", {len(schedule.damaged)} damaged" if schedule.damaged else ""))
    if waiting:
        results = find_runs([schedule.output]).finished if schedule.output.is_dir() else ()
        lines.append(_time(estimate(waiting, results), min(slots, len(waiting))))
    return "\n".join(lines)


def _time(estimated: tuple[float, bool] | None, slots: int) -> str:
    unknown = "unknown, because no run with these backbones, datasets and image sizes has finished"
    seconds = unknown if estimated is None else duration(estimated[0] / slots)
    others = "" if estimated is None or estimated[1] else ", based on runs of other methods"
    return f"estimated time, {f'{slots} runs at a time' if slots > 1 else 'one run at a time'}: {seconds}{others}"


def estimate(jobs: Iterable[Job], results: Iterable[Run]) -> tuple[float, bool] | None:
    """Estimate the total seconds for runs executed one by one. Also return whether finished runs cover every method.

    A run takes a fixed time plus a time per iteration. Both are averages over finished runs with the same backbone,
    dataset and image size and, if possible, the same method. Returns None if a run has no comparable finished runs:
    a different backbone can take a hundred times as long.
    """
    costs: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        if not result.config.soup:
            work = _work(result.config)
            for kind in (work, (result.config.run.method, *work)):
                costs[kind].append(_cost(result))
    total, similar = 0.0, True
    for job in jobs:
        work = _work(job.config)
        own = (job.config.run.method, *work)
        if work not in costs:
            return None
        similar &= own in costs
        fixed, iteration = map(fmean, zip(*costs.get(own, costs[work]), strict=True))
        total += fixed + job.config.optim.iterations * iteration
    return total, similar


def _cost(result: Run) -> tuple[float, float]:
    """Return a run's fixed time and its time per iteration, in seconds."""
    steps = [0, *(record["step"] for record in result.records)]
    training = sum(
        (step - before) * record["step_time"]
        for record, before, step in zip(result.records, steps, steps[1:], strict=False)
    )
    return max(0.0, result.seconds - training), training / steps[-1]


def _work(config: Config) -> tuple[Any, ...]:
    """Return the settings, besides the method, that determine the time per iteration."""
    return config.model.backbone, config.data.dataset, config.data.image_size


def report(schedule: Schedule) -> int:
    """Print one line per failed or damaged run, and return the exit code."""
    for line in describe_failures(schedule):
        print(f"medic: {line}", file=sys.stderr)
    return 1 if schedule.failed or schedule.damaged else 0


def describe_failures(schedule: Schedule) -> Iterator[str]:
    """Yield one line per failed or damaged run."""
    for name, reason in schedule.failed.items():
        yield f"failed: {schedule.titles[name]}: {reason} ({schedule.by_name[name].directory.path})"
    for name, reason in schedule.damaged.items():
        yield f"damaged: {schedule.by_name[name].directory.path}: {reason}"
