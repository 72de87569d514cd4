"""`medic watch`."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from medic.cli.options import add_device_option, add_import_option, number, output_file
from medic.deploy.paths import image_paths
from medic.errors import MedicError, counted
from medic.runs.opening import check_model, open_model
from medic.utils.parts import FRACTION

if TYPE_CHECKING:
    from medic.data.decode import BadImage


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic watch`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of its model files")
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="images, folders, quoted patterns, @FILE with a path per line, or -"
    )
    parser.add_argument(
        "--alpha",
        type=number(float, FRACTION),
        default=0.01,
        metavar="P",
        help="raise the alarm if the corrected p-value is below this, more than 0.002 (default: 0.01)",
    )
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help="write a page: .html")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    add_device_option(parser, default="auto")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Compare images with those of the sources and print the result; the exit code is 1 if they differ."""
    check_model(arguments.run)
    from medic.openset.shift import SMALLEST_P

    if arguments.alpha <= SMALLEST_P:
        raise MedicError(f"--alpha {arguments.alpha:g} must be above {SMALLEST_P:g}, the smallest possible p-value")
    if arguments.output is not None and arguments.output.suffix not in (".html", ".htm"):
        raise MedicError(f"--output {arguments.output}: the page is HTML, name it .html")
    images = image_paths(arguments.paths)
    predictor, _ = open_model(arguments.run, arguments.device, arguments.imports)
    from medic.reports.watch_page import describe_shift, write_watch_page

    unreadable: list[BadImage] = []
    output = predictor.infer(images, unreadable)
    shift = predictor.watch(output)
    alarm = shift.p_value < arguments.alpha
    if arguments.output is not None:
        write_watch_page(arguments.output, predictor, output, shift, arguments.alpha)
    if arguments.json:
        found = {**shift._asdict(), "p_value": shift.p_value, "alarm": alarm, "unreadable": len(unreadable)}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(describe_shift(shift, arguments.alpha)))
        if unreadable:
            print(f"{counted(len(unreadable), 'unreadable image')} left out, the first: {unreadable[0]}")
        if arguments.output is not None:
            print(arguments.output)
    return 1 if alarm else 0
