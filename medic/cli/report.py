"""`medic report`."""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from shlex import quote

from medic.cli.options import output_file
from medic.deploy.layout import DESCRIPTION
from medic.errors import MedicError
from medic.runs.layout import check_run, is_run
from medic.utils.files import check_writable

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic report`."""
    parser.add_argument("path", metavar="RUN_OR_DIR", help="run directory, or folder of runs")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="page to write (default: report.html in RUN_OR_DIR)",
    )
    parser.add_argument("--root", metavar="DIR", help="for a run: show its images, read from this folder only")
    parser.add_argument(
        "--paper", metavar="TABLE", help="for a folder: compare with a table of the paper, such as pacs-resnet50"
    )


def run(arguments: Namespace) -> int:
    """Write the report and print where it is."""
    path = Path(arguments.path)
    file: Path = arguments.output or path / "report.html"
    if is_run(path) or not path.is_dir():
        if arguments.paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {path} is a run: leave it out")
        check_run(path)
        check_writable("report", file)
        from medic.reports.run_page import write_report
        from medic.runs.run import Run

        finished = Run(path)
        print(write_report(finished, file, None if arguments.root is None else Path(arguments.root)))
        if arguments.root is None and (root := finished.config.data.root) is not None:
            logger.warning("images are not shown: add --root %s", quote(str(root)))
        return 0
    if (path / DESCRIPTION).exists():
        raise MedicError(f"{path} is a model, not a run: give the run directory")
    if arguments.root is not None:
        raise MedicError(f"--root requires a single run, but {path} is a folder of runs: leave it out")
    check_writable("report", file)
    from medic.reports.table_page import write_table_report
    from medic.results.runs import find_runs

    collection = find_runs([path])
    print(write_table_report(collection, str(path), file, arguments.paper))
    return 1 if collection.damaged else 0
