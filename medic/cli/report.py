"""`medic report`."""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from shlex import quote

from medic.errors import MedicError
from medic.runs.layout import CONFIG, MODEL

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic report`."""
    parser.add_argument("path", metavar="RUN_OR_DIR", help="a run, or a folder of runs")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page to write (default: report.html in RUN_OR_DIR)")
    parser.add_argument(
        "--root", metavar="DIR", help="of a run: show its images, which are read below this folder alone"
    )
    parser.add_argument(
        "--paper", metavar="TABLE", help="of a folder: beside a table of the paper, such as pacs-resnet50"
    )


def run(arguments: Namespace) -> int:
    """Write the report and print where it is."""
    path = Path(arguments.path)
    file = path / "report.html" if arguments.output is None else Path(arguments.output)
    if (path / CONFIG).exists() or not path.is_dir():
        if arguments.paper is not None:
            raise MedicError(f"--paper is for a folder of runs, but {path} is a run: leave it out")
        from medic.report.run_page import write_report
        from medic.runs.directory import Run

        finished = Run(path)
        print(write_report(finished, file, None if arguments.root is None else Path(arguments.root)))
        if arguments.root is None and (root := finished.settings["root"]) is not None:
            logger.warning("images are not shown: add --root %s", quote(str(root)))
        return 0
    if (path / MODEL).exists():
        raise MedicError(f"{path} is a model without its run: give the directory of the run")
    if arguments.root is not None:
        raise MedicError(f"--root is for a single run, but {path} is a folder of runs: leave it out")
    from medic.report.table_page import write_table_report
    from medic.tables.results import collect

    collection = collect([path])
    print(write_table_report(collection, str(path), file, arguments.paper))
    return 1 if collection.damaged else 0
