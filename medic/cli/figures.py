"""The `medic figures` command."""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path
from shlex import quote

from medic.analysis import ANALYSES
from medic.cli.analyze import add_measuring_options, explicit_options, print_result
from medic.cli.options import add_format_option, output_folder
from medic.errors import check_choice
from medic.runs.layout import is_run

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic figures`."""
    parser.add_argument("folder", metavar="DIR", help="folder of runs")
    parser.add_argument(
        "-o",
        "--output",
        type=output_folder,
        default="figures",
        metavar="DIR",
        help="folder to write the figures to (default: figures)",
    )
    add_format_option(parser, ("pdf", "png", "svg"))
    parser.add_argument(
        "--only", nargs="*", action="extend", default=[], metavar="FIGURE", help="draw only these figures"
    )
    add_measuring_options(parser)


def run(arguments: Namespace) -> int:
    """Draw every figure in the paper whose runs exist, and log the commands that train missing runs."""
    from medic.results.runs import find_runs

    folder, output = Path(arguments.folder), arguments.output
    results = find_runs([folder]).finished
    from medic.analysis import style  # deferred, because these import torch
    from medic.analysis.figures import FIGURES
    from medic.analysis.result import MissingRuns
    from medic.runs.run import Run

    for name in arguments.only:
        check_choice("figure", name, FIGURES)
    runs_folder = folder.parent if is_run(folder) else folder  # for a single run, the parent folder
    options = explicit_options(arguments, ("moments", "iterations", "root", "device"))
    missing = 0
    for figure in FIGURES.values():
        if arguments.only and figure.name not in arguments.only:
            continue
        analysis = ANALYSES[figure.analysis]
        try:
            matches = figure.find(results)
            runs = matches if analysis.takes == "folders" else [Run(result.path) for result in matches]
            own = {name: value for name, value in options.items() if name in analysis.options}
            result = analysis.measure(runs, **own)
        except MissingRuns as error:
            missing += 1
            command = f"medic reproduce {error.table} --root DIR --output {quote(str(runs_folder))}"
            logger.warning("skipped figure %s: missing %s; train them with `%s`", figure.name, error.what, command)
            continue
        path = output / f"{figure.name}.{arguments.format}"
        style.save(result.draw(), path)
        print(f"{figure.name}: {figure.about} → {path}")
        print_result(result)
        print()
    if missing:
        logger.warning("replace --root DIR with --quick for a small version on the built-in digits")
    return 1 if missing else 0
