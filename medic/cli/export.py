"""The `medic export` command."""

from argparse import ArgumentParser, Namespace

from medic.api.models import export
from medic.cli.options import add_import_option, output_file
from medic.deploy.layout import EXPORTS
from medic.deploy.paths import image_paths
from medic.errors import counted
from medic.runs.opening import check_model


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic export`."""
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    parser.add_argument(
        "--format",
        choices=tuple(EXPORTS),
        default="onnx",
        metavar="FORMAT",
        help="output format: onnx or torch-export (default: onnx)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="file to write (default: model.onnx or model.pt2 in the run directory)",
    )
    parser.add_argument(
        "--images",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="images or folders to verify the export with (default: 256 target images)",
    )
    parser.add_argument("--root", metavar="DIR", help="folder with the run's images, if it has moved")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Export a model, and print how closely the exported graph matches it."""
    check_model(arguments.run)
    images = None if arguments.images is None else list(image_paths(arguments.images))
    options = {"format": arguments.format, "root": arguments.root, "imports": arguments.imports}
    exported = export(arguments.run, arguments.output, images=images, **options)
    checked = f"same decisions on {counted(exported.images, 'image')}, scores within {exported.difference:.0e}"
    print(f"{exported.path}: {exported.path.stat().st_size / 2**20:.1f} MiB, {checked}")
    return 0
