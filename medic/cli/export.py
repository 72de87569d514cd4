"""`medic export`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from medic.errors import MedicError, counted

if TYPE_CHECKING:
    from torch import Tensor

    from medic.deploy import Predictor

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
        nargs="*",
        metavar="PATH",
        help="images or folders to check the export on (default: 256 target images)",
    )
    parser.add_argument("--root", metavar="DIR", help="folder of the run's images, if it moved")


def run(arguments: Namespace) -> int:
    """Export a model and say how far the graph differs from it."""
    from medic.deploy.export import export

    form = arguments.format

    folder = Path(arguments.run)
    predictor, pixels = _opened(folder, arguments)
    path = folder / f"model{SUFFIX[form]}" if arguments.output is None else Path(arguments.output)
    difference = export(predictor, path, form, pixels)
    size = path.stat().st_size / 2**20
    checked = f"{counted(len(pixels), 'image')} decided alike, scores within {difference:.0e}"
    print(f"{path}: {size:.1f} MiB, {checked}")
    return 0


def _opened(folder: Path, arguments: Namespace) -> "tuple[Predictor, Tensor]":
    """Return the model, and pixels to check the export on."""
    import numpy as np
    import torch

    from medic.deploy import load
    from medic.deploy.inputs import to_pixels
    from medic.deploy.paths import image_paths
    from medic.runs.directory import Run
    from medic.runs.layout import CONFIG
    from medic.runs.review import target_pixels

    finished = Run(folder) if (folder / CONFIG).exists() else None
    predictor = load(folder) if finished is None else finished.predictor
    if arguments.images is not None:
        paths = list(image_paths(arguments.images))
        return predictor, torch.from_numpy(np.stack([to_pixels(path, predictor.decoded) for path in paths]))
    if finished is None:
        raise MedicError(f"{folder} is not a run, so it has no images: give some to check the export on with --images")
    return predictor, target_pixels(finished, CHECKED, arguments.root)
