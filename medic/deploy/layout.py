"""File names of a saved model. This module does not import torch."""

from pathlib import Path

from medic.errors import MedicError

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
EXPORTS = {"onnx": ".onnx", "torch-export": ".pt2"}
"""Suffixes of exported files by format."""


def model_folder(path: Path | str) -> Path:
    """Return a model's folder, given the folder or one of its two files."""
    return Path(path).parent if Path(path).name in (DESCRIPTION, WEIGHTS) else Path(path)


def check_model_files(folder: Path) -> None:
    """Raise an error if one of the two model files is missing."""
    if missing := [name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()]:
        way = "pass a run directory, or the --output folder of `medic calibrate`"
        raise MedicError(f"{folder} does not contain a model ({missing[0]} is missing): {way}")
