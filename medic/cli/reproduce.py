"""The `medic reproduce` command."""

import logging
from argparse import ArgumentParser, Namespace
from dataclasses import replace

from medic.cli import catalogue
from medic.cli.options import add_format_option, add_run_options, index, user_settings
from medic.cli.sweep import add_executor_options, chosen_executor
from medic.errors import MedicError, check_choice
from medic.reports.terminal import print_rows
from medic.results.runs import sort_runs
from medic.results.table import FORMATS, print_table
from medic.results.wording import learned_nothing, runs_are

logger = logging.getLogger(__name__)

PROTOCOL = "authors"
"""Default protocol for tables."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic reproduce`."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="table to reproduce (--list shows all)")
    parser.add_argument("--list", action="store_true", help="list the tables of the paper")
    parser.add_argument(
        "--quick", action="store_true", help="train a small version on the built-in benchmark (about half an hour)"
    )
    parser.add_argument(
        "--seeds",
        type=index,
        nargs="*",
        action="extend",
        metavar="N",
        help="seeds to train each cell with (default: 0)",
    )
    parser.add_argument(
        "--methods",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME",
        help="train only these methods from the table",
    )
    parser.add_argument(
        "--only", nargs="*", action="extend", default=[], metavar="COLUMN", help="train only these columns of the table"
    )
    add_format_option(parser, FORMATS)
    add_executor_options(parser)
    add_run_options(parser, protocol=PROTOCOL)


def run(arguments: Namespace) -> int:
    """Train the missing runs of a table, and print the table."""
    rows = catalogue.rows("tables", make_rows) if arguments.list or catalogue.stored() else []
    if arguments.list:
        print_rows(rows, numeric=["runs per seed"])
        return 0
    if arguments.table is None:
        raise MedicError("missing table name: `medic reproduce --list` shows all tables")
    check_choice("table of the paper", arguments.table, [row["name"] for row in rows] or [arguments.table])
    settings, executor = (
        user_settings(arguments, dataset=None),
        chosen_executor(arguments),
    )  # the table sets the dataset
    from medic.reports.against import AgainstPaper  # deferred, because these import torch
    from medic.results.paper_tables import reproduction
    from medic.sweeps.launch import launch
    from medic.sweeps.sweep import Planner

    table = reproduction(arguments.table, arguments.quick, settings.pop("protocol", None) or PROTOCOL)
    methods = {str(line.settings["method"]) for line in table.lines}
    for method in arguments.methods:
        check_choice("method", method, sorted(methods), f"of {arguments.table}")
    columns = [table.column(name) for name in arguments.only]
    runs = table.runs([0] if arguments.seeds is None else arguments.seeds, arguments.methods, columns, settings)
    for warning in table.warnings(runs):
        logger.warning("%s", warning)
    show = print if arguments.dry_run else logger.info
    for weights in table.weights(runs):
        show(weights)
    planner = Planner()
    cells = {cell: planner.jobs(several) for cell, several in runs.items()}
    jobs = [job for several in cells.values() for job in several]
    schedule = launch(jobs, executor, arguments.retries, arguments.dry_run, arguments.quiet)
    if arguments.dry_run or schedule.queued:  # nothing has run yet
        return 1 if schedule.damaged else 0
    collection = sort_runs(job.directory.path for job in schedule.jobs)
    names = {cell: [job.name for job in jobs] for cell, jobs in cells.items()}
    made = table.tabulate(names, {result.path.name: result for result in collection.finished})
    against = None
    if not table.figure and not arguments.quick:
        against = AgainstPaper(made, table)
        made = replace(made, notes=(*made.notes, *against.notes()))
    for note in collection.notes():
        logger.warning("%s", note)
    print_table(made, against, arguments.format)
    summary = f"{len(collection.finished)} of {runs_are(len(schedule.jobs))} finished in {schedule.output}"
    failures = learned_nothing(collection.finished)
    logger.info("%s%s", summary, failures and f"; {failures}")
    return 0 if len(collection.finished) == len(schedule.jobs) and not failures else 1


def make_rows() -> list[dict[str, str]]:
    """Return one entry per table. Unlike importing this module, this imports torch."""
    from medic.results.paper_tables import list_tables

    return list_tables()
