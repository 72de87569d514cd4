"""The `medic probe` command."""

import json
from argparse import ArgumentParser, Namespace
from shlex import quote

from medic.cli.options import add_run_options, user_settings
from medic.cli.sweep import add_executor_options, chosen_executor
from medic.errors import MedicError
from medic.reports.terminal import print_blocks
from medic.results.runs import sort_runs
from medic.results.table import print_table
from medic.results.wording import learned_nothing, runs_are
from medic.sweeps.launch import launch, report
from medic.sweeps.probe import OUTPUT, compare_scores, plan_probe
from medic.sweeps.sweep import parse_span
from medic.utils.logs import log_output


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic probe`."""
    parser.add_argument(
        "--methods",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME",
        help="methods to compare (default: all methods that can train the head alone)",
    )
    parser.add_argument(
        "--seeds", default="0..2", metavar="A..B", help="seeds to train each method with (default: 0..2)"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    add_executor_options(parser)
    add_run_options(parser, target="each domain in turn", output=OUTPUT)


def run(arguments: Namespace) -> int:
    """Train the missing runs of a probe, and print one table of methods and one of scores."""
    settings, executor = user_settings(arguments, output=OUTPUT), chosen_executor(arguments)
    try:
        seeds = parse_span([f"seed={arguments.seeds}"])["seed"]
    except MedicError as error:
        raise MedicError(f"--seeds must be numbers such as 0,1,2 or 0..2, got {arguments.seeds!r}") from error
    methods = [name for part in arguments.methods for name in part.split(",") if name]
    with log_output(arguments.quiet):
        jobs, left_out = plan_probe(settings, methods, seeds)
        schedule = launch(jobs, executor, arguments.retries, arguments.dry_run, arguments.quiet)
    if arguments.dry_run:
        return 0
    runs = sort_runs(job.directory.path for job in jobs)
    if not len(runs):  # all failed, or are queued on a cluster
        print(f"no finished runs in {quote(str(schedule.output))} yet: repeat the command to print the tables")
        return report(schedule)
    rows = compare_scores(runs)
    if arguments.json:
        print(json.dumps({"methods": json.loads(runs.table().to_json()), "oscr": rows, "left out": left_out}, indent=2))
        return report(schedule)
    print_table(runs.table(), None, "text")
    scores = list(dict.fromkeys(name for row in rows for name in row if name != "method"))
    if scores:  # empty without unknown classes
        print("\nOSCR by score, averaged over targets:")
    texts = [
        {"method": row["method"], **{name: f"{row[name]:.1f}" if name in row else "–" for name in scores}}
        for row in rows
    ]
    print_blocks(texts, "method", scores)
    for name, reason in left_out.items():
        print(f"skipped {name}: {reason.partition(': omit')[0]}")
    failures = learned_nothing(schedule.finished_runs())
    print(f"{runs_are(len(runs))} in {quote(str(schedule.output))}" + (failures and f"; {failures}"))
    return report(schedule) or int(bool(failures))
