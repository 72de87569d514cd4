"""`medic export`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from medic.cli.opening import check_exists, open_model
from medic.cli.options import add_import_option
from medic.errors import MedicError, counted

if TYPE_CHECKING:
    from torch import Tensor

    from medic.deploy import Predictor
    from medic.runs.directory import Run

SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2"}
CHECKED = 256
"""Target images of a run that an export is checked on."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic export`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of a model")
    parser.add_argument(
        "--format", choices=tuple(SUFFIX), default="onnx", metavar="FORMAT", help="onnx or torch-export (default: onnx)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file to write (default: model.onnx or model.pt2 in the run)"
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
    check_exists(arguments.run)
    from medic.deploy.export import export
    from medic.deploy.model_file import model_folder

    form = arguments.format
    predictor, finished = open_model(arguments.run, imports=arguments.imports)
    pixels = _pixels(predictor, finished, arguments)
    beside = model_folder(arguments.run) / f"model{SUFFIX[form]}"
    path = beside if arguments.output is None else Path(arguments.output)
    difference = export(predictor, path, form, pixels)
    size = path.stat().st_size / 2**20
    checked = f"{counted(len(pixels), 'image')} decided alike, scores within {difference:.0e}"
    print(f"{path}: {size:.1f} MiB, {checked}")
    return 0


def _pixels(predictor: "Predictor", finished: "Run | None", arguments: Namespace) -> "Tensor":
    """Return pixels to check the export on."""
    import numpy as np
    import torch

    from medic.deploy.inputs import to_pixels
    from medic.deploy.paths import image_paths
    from medic.runs.review import target_pixels

    if arguments.images is not None:
        found = [to_pixels(path, predictor.decoded) for path in image_paths(arguments.images)]
        return torch.from_numpy(np.stack(found))
    if finished is None:
        raise MedicError(f"{arguments.run} is not a run, so it has no target images: check on others with --images")
    return target_pixels(finished, CHECKED, arguments.root)
