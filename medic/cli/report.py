"""The `medic report` command."""

import logging
from argparse import ArgumentParser, Namespace
from shlex import quote

from medic.api.results import report
from medic.cli.options import output_file
from medic.results.runs import open_runs
from medic.runs.run import Run

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic report`."""
    parser.add_argument("path", metavar="RUN_OR_DIR", help="run directory, or folder of runs")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="HTML file to write (default: report.html in RUN_OR_DIR)",
    )
    parser.add_argument("--root", metavar="DIR", help="for a run: folder with its images, to show some of them")
    parser.add_argument(
        "--paper", metavar="TABLE", help="for a folder: table of the paper to compare with, such as pacs-resnet50"
    )


def run(arguments: Namespace) -> int:
    """Write the report and print its path. Return 1 if a run in the folder is damaged."""
    runs = open_runs(arguments.path)
    print(report(runs, arguments.output, root=arguments.root, paper=arguments.paper))
    if isinstance(runs, Run):
        if arguments.root is None and (root := runs.config.data.root) is not None:
            logger.warning("the report does not show images: add --root %s", quote(str(root)))
        return 0
    return 1 if runs.damaged else 0
