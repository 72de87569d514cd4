"""`medic export`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from medic.cli.opening import check_model, is_model, open_model
from medic.cli.options import add_import_option, output_file
from medic.deploy.layout import EXPORTS, model_folder
from medic.errors import MedicError, counted
from medic.utils.files import check_writable

if TYPE_CHECKING:
    pass


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic export`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of a model")
    parser.add_argument(
        "--format",
        choices=tuple(EXPORTS),
        default="onnx",
        metavar="FORMAT",
        help="onnx or torch-export (default: onnx)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="file to write (default: model.onnx or model.pt2 in the run)",
    )
    parser.add_argument(
        "--images",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="images or folders to check the export on (default: 256 target images)",
    )
    parser.add_argument("--root", metavar="DIR", help="folder of the run's images, if it moved")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Export a model, and report how far the graph differs from it."""
    check_model(arguments.run)
    from medic.deploy.paths import image_paths

    form = arguments.format
    path: Path = arguments.output or model_folder(arguments.run) / f"model{EXPORTS[form]}"
    check_writable("export", path)
    if arguments.images is None and is_model(arguments.run):
        raise MedicError(f"{arguments.run} is not a run, so it has no target images: check on others with --images")
    images = None if arguments.images is None else list(image_paths(arguments.images))
    from medic.api import export  # now, because it imports torch

    predictor, finished = open_model(arguments.run, imports=arguments.imports)
    exported = export(finished or predictor, path, format=form, images=images, root=arguments.root)
    size = path.stat().st_size / 2**20
    checked = f"{counted(exported.images, 'image')} decided alike, scores within {exported.difference:.0e}"
    print(f"{path}: {size:.1f} MiB, {checked}")
    return 0
