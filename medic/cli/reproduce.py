"""`medic reproduce`."""

import sys
from dataclasses import replace

from jsonargparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, given_settings
from medic.cli.sweep import add_executor_options, launch


def add_options(parser: ArgumentParser) -> None:
    """Which table, and how much of it."""
    parser.add_argument("name", type=str | None, nargs="?", default=None, help="name of the table: see --list")
    parser.add_argument("--list", action="store_true", help="list the tables")
    parser.add_argument("--quick", action="store_true", help="the same shape on the built-in benchmark, in minutes")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="seeds of the runs of every cell [0]")
    parser.add_argument("--methods", type=str, nargs="*", default=[], help="only these of its methods")
    parser.add_argument("--only", type=str, nargs="*", default=[], metavar="COLUMN", help="only these of its columns")
    parser.add_argument("--format", type=str, default="text", help="text, markdown, latex, csv or json [text]")
    add_executor_options(parser)
    add_run_options(parser)


def run(arguments: Namespace) -> int:
    """Do the runs of a table that are missing, and print it."""
    from medic.errors import MedicError, check_choice
    from medic.report.against import AgainstPaper
    from medic.report.formats import FORMATS, print_table
    from medic.sweeps.sweep import Planner
    from medic.tables.paper_tables import reproduction
    from medic.tables.reproduction import Asked
    from medic.tables.results import read_runs, runs_are

    if arguments.list:
        return _list()
    if arguments.name is None:
        raise MedicError("which table? `medic reproduce --list` names them")
    check_choice("format", arguments.format, ["text", *FORMATS])
    table = reproduction(arguments.name, arguments.quick)
    methods = {str(one.settings["method"]) for one in table.lines if one.settings is not None}
    for method in arguments.methods:
        check_choice("method", method, sorted(methods), f"of {arguments.name}")
    for column in arguments.only:
        check_choice("column", column, table.columns, f"of {arguments.name}")
    asked = Asked(arguments.seeds, arguments.methods, arguments.only, given_settings(arguments))
    planner = Planner()
    configs = table.configs(asked)
    for line in table.advice(configs):
        print(f"medic: note: {line}", file=sys.stderr)
    cells = {cell: planner.jobs(map(vars, each)) for cell, each in configs.items()}
    schedule = launch(arguments).run([job for jobs in cells.values() for job in jobs])
    if arguments.dry_run or schedule.queued:
        return 1 if schedule.damaged else 0
    collection = read_runs(job.directory.path for job in schedule.jobs)
    made = table.tabulate(cells, {result.path.name: result for result in collection.results})
    against = None
    if not table.figure and not arguments.quick:
        against = AgainstPaper(made, table)
        made = replace(made, notes=(*made.notes, *against.notes()))
    for note in collection.notes():
        print(f"medic: note: {note}", file=sys.stderr)
    print_table(made, against, arguments.format)
    output = schedule.jobs[0].directory.path.parent
    print(f"{len(collection.results)} of {runs_are(len(schedule.jobs))} in {output}", file=sys.stderr)
    return 0 if len(collection.results) == len(schedule.jobs) else 1


def _list() -> int:
    from medic.report.table import print_rows
    from medic.tables.paper_tables import NAMES, reproduction
    from medic.tables.reproduction import Asked

    rows = []
    for name in NAMES:
        table = reproduction(name)
        runs = len({repr(config) for configs in table.configs(Asked()).values() for config in configs})
        rows.append({"name": name, "what it shows": table.title, "runs per seed": str(runs)})
    print_rows(rows, numeric=["runs per seed"])
    return 0
