"""The `medic demo` command, which compares two methods on the built-in benchmark in a minute and a half."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from medic.cli.options import add_device_option, count, output_folder
from medic.errors import MedicError, counted
from medic.metrics import METRICS
from medic.reports.terminal import print_rows

if TYPE_CHECKING:
    from medic.results.table import Row, Table

BASE, COMPARED = "erm", "medic++"
DOMAINS = ("handwritten", "printed", "blended", "street")
"""Domains of the built-in digits. Listed here because importing the dataset would import torch."""
SHORT = {"images": 36, "averaging": "none"}
"""Settings that shorten a run, chosen based on run time alone. All other settings are defaults."""
SHORTNESS = "These runs are too short to converge. They show how fast the methods learn, not how good they become."
COLUMNS = tuple(METRICS[key] for key in ("acc", "hscore", "oscr_c", "oscr_b"))
EXECUTOR = "local"
RANKED = METRICS["oscr_b"]
"""Metric that ranks the two methods: OSCR with the score of the one-vs-all head, which both methods have."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic demo`."""
    parser.add_argument(
        "--target",
        choices=DOMAINS,
        metavar="DOMAIN",
        help=f"target domain, never used for training: {', '.join(DOMAINS)} (default: street)",
    )
    parser.add_argument("--all", action="store_true", help="use every domain as the target in turn")
    parser.add_argument("--seeds", type=count, default=5, metavar="N", help="number of seeds per method (default: 5)")
    parser.add_argument(
        "--iterations", type=count, default=180, metavar="N", help="number of outer updates per run (default: 180)"
    )
    parser.add_argument(
        "--output", type=output_folder, default="demo", metavar="DIR", help="output directory (default: demo)"
    )
    add_device_option(parser, default="auto")


def run(arguments: Namespace) -> int:
    """Train both methods with the one-vs-all head, print the metrics for each seed, and write an HTML report."""
    if arguments.all and arguments.target is not None:
        raise MedicError("--all and --target cannot be combined: use only one of them")
    targets = "every domain" if arguments.all else arguments.target or "street"
    seeds = counted(arguments.seeds, "seed")
    print(f"training {BASE} and {COMPARED} on the built-in digits, target {targets}, {seeds}", flush=True)
    from medic.reports.run_page import write_report  # deferred, because it imports torch
    from medic.reports.table_page import write_table_report
    from medic.results.runs import find_runs
    from medic.results.tabulate import tabulate
    from medic.runs.run import Run
    from medic.sweeps.executors import make_executor
    from medic.sweeps.launch import launch, report
    from medic.sweeps.sweep import Planner, Sweep

    settings = {
        "dataset": "digits",
        "objective": "ce+ova",
        "iterations": arguments.iterations,
        "evaluate_every": arguments.iterations,
        **SHORT,
        **{name: getattr(arguments, name) for name in ("device", "output")},
    }
    span = {
        "target": list(DOMAINS) if arguments.all else [targets],
        "seed": list(range(arguments.seeds)),
        "method": [BASE, COMPARED],
    }
    schedule = launch(Sweep(settings, span).jobs(Planner()), make_executor(EXECUTOR))
    if code := report(schedule):
        return code
    collection = find_runs(job.directory.path for job in schedule.jobs)
    table = tabulate(collection.finished, "validation", COLUMNS)
    note = print_tables(table)
    for job in schedule.jobs:
        if job.config.run.seed == 0:
            write_report(Run(job.directory.path), job.directory.path / "report.html")
    print(write_table_report(collection, "medic demo", Path(arguments.output) / "index.html", note=note))
    return 0 if all(result.learned for result in collection.finished) else 1


def print_tables(table: "Table") -> str:
    """Print the mean of every metric, and OSCR for each seed. Return a sentence that says which method is ahead."""
    from medic.results.table import written

    column = table.columns_with_average[-1]
    means = [
        {column: row.label, **{metric.title: written(table.entry(row, column, metric)) for metric in COLUMNS}}
        for row in table.rows
    ]
    print_rows(means, numeric=[metric.title for metric in COLUMNS])
    for note in table.notes:
        print(f"note: {note}")
    by_method = {row.method: _by_seed(row) for row in table.rows}
    base, compared = by_method[BASE], by_method[COMPARED]
    differences = {seed: compared[seed] - base[seed] for seed in base}
    seeds = [f"seed {seed}" for seed in base]
    lines = ((BASE, base, ".1f"), (COMPARED, compared, ".1f"), ("difference", differences, "+.1f"))
    rows = [
        {RANKED.title: name, **dict(zip(seeds, (format(value, form) for value in values.values()), strict=True))}
        for name, values, form in lines
    ]
    print_rows(rows, numeric=seeds)
    note = f"{describe_order(list(differences.values()))} {SHORTNESS}"
    print(note)
    return note


def _by_seed(row: "Row") -> dict[int, float]:
    """Return a row's ranking metric for each seed, averaged over targets."""
    values: dict[int, list[float]] = {}
    for pick in row.picks:
        if (value := pick.value(RANKED)) is not None:
            values.setdefault(pick.run.config.run.seed, []).append(value)
    return {seed: fmean(several) for seed, several in sorted(values.items())}


def describe_order(differences: Sequence[float]) -> str:
    """Return a sentence that says which method is ahead, and whether that holds for every seed."""
    ahead, behind = (sum(sign * difference > 0 for difference in differences) for sign in (1, -1))
    seeds = len(differences)
    if seeds > 1 and seeds in (ahead, behind):
        return f"{COMPARED if ahead else BASE} is ahead in {RANKED.title} with all {seeds} seeds."
    return (
        f"{COMPARED} is ahead in {RANKED.title} with {ahead} of {counted(seeds, 'seed')}: "
        "the order of the two methods is not stable."
    )
