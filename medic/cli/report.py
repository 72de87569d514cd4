"""`medic report`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic report`."""
    parser.add_argument("path", metavar="RUN_OR_DIR", help="a run, or a folder of runs")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page to write [report.html in RUN_OR_DIR]")
    parser.add_argument("--root", metavar="DIR", help="show images, which are read below this folder alone")


def run(arguments: Namespace) -> int:
    """Write the report and print where it is."""
    from medic.report.run_page import write_report
    from medic.runs.directory import Run

    file = None if arguments.output is None else Path(arguments.output)
    print(write_report(Run(arguments.path), file, None if arguments.root is None else Path(arguments.root)))
    return 0
