"""The `medic analyze` command."""

import json
import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medic.analysis import ANALYSES
from medic.api.results import analyze
from medic.cli.options import add_device_option, add_import_option, count, output_file
from medic.errors import check_choice
from medic.reports.terminal import print_rows
from medic.utils.files import check_writable, write_text, writing

if TYPE_CHECKING:
    from medic.analysis.result import Result

logger = logging.getLogger(__name__)

OPTIONS = ("moments", "iterations", "split", "classes", "rerun", "root", "device")


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic analyze`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the analysis; omit it to list all")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="finished run directories; for openness and cost, folders of runs"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="figure to write: FILE.png, FILE.svg or FILE.pdf")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all numbers as JSON")
    add_measuring_options(parser)
    parser.add_argument(
        "--split", metavar="NAME", help="images for separation, boundary and embed: validation, target or train"
    )
    parser.add_argument(
        "--classes", nargs=2, metavar="CLASS", help="for boundary: the positive class and one other class"
    )
    parser.add_argument("--rerun", action="store_true", help="compute features that a run did not save")
    add_import_option(parser, "Python file or module that the runs require, executed first")


def add_measuring_options(parser: ArgumentParser) -> None:
    """Add the options for analyses that replay training."""
    parser.add_argument(
        "--moments",
        type=count,
        metavar="N",
        help="number of measurements to take while replaying the training (default: 10)",
    )
    parser.add_argument("--iterations", type=count, metavar="N", help="replay only the first N iterations of training")
    parser.add_argument("--root", metavar="DIR", help="folder with the images, if it has moved")
    add_device_option(parser)


def run(arguments: Namespace) -> int:
    """Run the analysis, print its table, and write the figure."""
    if arguments.name is None:
        rows = [
            {"name": analysis.name, "takes": analysis.takes, "content": analysis.about}
            for analysis in ANALYSES.values()
        ]
        print_rows(rows)
        return 0
    check_choice("analysis", arguments.name, ANALYSES)
    options = explicit_options(arguments, OPTIONS)
    if arguments.output is not None:
        from medic.analysis import style

        style.check_format(Path(arguments.output))
        check_writable("figure", Path(arguments.output).parent, folder=True)
    result = analyze(arguments.name, arguments.runs, imports=arguments.imports, **options)
    print_result(result)
    if arguments.json is not None:
        with writing("numbers", arguments.json):
            write_text(arguments.json, json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n")
    if arguments.output is not None:
        style.save(result.draw(), Path(arguments.output))
        logger.info("figure: %s", arguments.output)
    return 0


def print_result(result: "Result") -> None:
    """Print the table and the notes of an analysis."""
    if rows := result.rows():
        print_rows(rows, numeric=list(rows[0])[1:])
    for note in result.notes():
        print(note)


def explicit_options(arguments: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that the user passed."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}
