"""`medic reproduce`."""

import sys
from pathlib import Path
from shutil import get_terminal_size

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
    from medic.experiments.launch import print_plan, report
    from medic.experiments.reproduction import Asked, reproduction
    from medic.experiments.results import collect
    from medic.experiments.sweeps import Planner
    from medic.report.against import against_paper
    from medic.report.formats import FORMATS, to_terminal

    if arguments.list:
        return _list()
    if arguments.name is None:
        raise MedicError("which table? `medic reproduce --list` names them")
    check_choice("format", arguments.format, ["text", *FORMATS])
    table = reproduction(arguments.name, arguments.quick)
    methods = {str(one.settings["method"]) for one in table.lines if one.settings is not None}
    for method in arguments.methods:
        check_choice(f"method of {arguments.name}", method, methods)
    for column in arguments.only:
        check_choice(f"column of {arguments.name}", column, table.columns)
    output = Path(arguments.output) / (f"{table.name}-quick" if arguments.quick else table.name)
    settings = {**given_settings(arguments), "output": str(output)}
    asked = Asked(arguments.seeds, arguments.methods, arguments.only, settings)
    planner = Planner(lambda line: print(line, file=sys.stderr))
    cells = {cell: planner.jobs(configs) for cell, configs in table.configs(asked).items()}
    schedule = launch(arguments).run([job for jobs in cells.values() for job in jobs])
    if arguments.dry_run:
        print_plan(schedule)
        return 0
    results = {result.path.name: result for result in collect([output]).results}
    made = table.tabulate(cells, results)
    against = None if table.figure or arguments.quick else against_paper(table.name)
    print(table.title)
    if arguments.format == "text":
        width = get_terminal_size().columns if sys.stdout.isatty() else 200
        print(to_terminal(made, against, width), end="")
    else:
        print(FORMATS[arguments.format](made, against), end="")
    return report(schedule)


def _list() -> int:
    from medic.experiments.reproduction import NAMES, Asked, reproduction
    from medic.report.table import print_rows

    rows = []
    for name in NAMES:
        table = reproduction(name)
        runs = sum(map(len, table.configs(Asked()).values()))
        rows.append({"name": name, "what it shows": table.title, "runs per seed": str(runs)})
    print_rows(rows, numeric=["runs per seed"])
    return 0
