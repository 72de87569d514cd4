"""The `medic soup` command."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from medic.cli.catalogue import check_paths
from medic.cli.options import add_device_option, add_import_option
from medic.config.settings import SETTINGS
from medic.errors import MedicError
from medic.reports.terminal import print_rows, print_run, report_command
from medic.runs.layout import check_run, is_run, runs_inside

if TYPE_CHECKING:
    from medic.runs.run import Run


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic soup`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="finished runs that started from the same weights, or folders with such runs",
    )
    output = SETTINGS["output"]
    parser.add_argument(
        "--output",
        default=output.default,
        metavar="DIR",
        help=f"directory in which to create the soup's run directory (default: {output.default})",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the soup's run directory (default: a hash of its runs)")
    parser.add_argument("--root", metavar="DIR|FILE", help="folder or table with the images, if it has moved")
    parser.add_argument(
        "--weights", metavar="FILE|NAME", help="weights that the runs started from, if the file has moved"
    )
    add_device_option(parser, default="auto")
    add_import_option(parser, "Python file or module that the runs require, executed first")


def run(arguments: Namespace) -> int:
    """Create the soup, and print the runs that were tried and the metrics."""
    runs: list[Path] = []
    for path in map(Path, arguments.runs):
        runs += [path] if is_run(path) else runs_inside(path) or [path]
    if len(runs) < 2:
        raise MedicError(f"a soup requires at least two runs, got only {runs[0]}: pass several run directories")
    for path in runs:
        check_run(path)
    check_paths({name: getattr(arguments, name) for name in ("root", "weights", "output")})
    from medic.runs.soup import soup

    made = soup(
        runs,
        output=arguments.output,
        name=arguments.name,
        root=arguments.root,
        weights=arguments.weights,
        device=arguments.device,
        imports=arguments.imports,
    )
    _print_trials(made)
    print()
    print_run(made)
    print(f"{made.description['provenance']['selection']}: {made.path}")
    print(f"write a report with: {report_command(made)}")
    return 0 if made.learned else 1


def _print_trials(made: "Run") -> None:
    """Print one row per run that was tried, in order."""
    rows = [
        {
            "run": str(trial["path"]),
            "validation Acc": f"{100 * trial['acc']:.1f}",
            "soup Acc": f"{100 * trial['soup_acc']:.1f}",
            "kept": "yes" if trial["kept"] else "no",
        }
        for trial in made.description["provenance"]["soup"]
    ]
    print_rows(rows, numeric=["validation Acc", "soup Acc"])
