"""The `medic watch` command."""

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
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="images, folders, quoted patterns, @FILE with one path per line, or - for standard input",
    )
    parser.add_argument(
        "--alpha",
        type=number(float, FRACTION),
        default=0.01,
        metavar="P",
        help="raise the alarm if the corrected p-value is below P, which must be above 0.002 (default: 0.01)",
    )
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help="HTML report to write")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    add_device_option(parser, default="auto")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Compare images with the source domains, and print the result. Return 1 if they differ."""
    check_model(arguments.run)
    from medic.openset.shift import SMALLEST_P

    if arguments.alpha <= SMALLEST_P:
        raise MedicError(
            f"--alpha must be above {SMALLEST_P:g}, the smallest corrected p-value of the feature test, "
            f"got {arguments.alpha:g}"
        )
    if arguments.output is not None and arguments.output.suffix not in (".html", ".htm"):
        raise MedicError(f"--output must end in .html, got {arguments.output}")
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
            print(f"skipped {counted(len(unreadable), 'unreadable image')}; first error: {unreadable[0]}")
        if arguments.output is not None:
            print(arguments.output)
    return 1 if alarm else 0
