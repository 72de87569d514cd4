"""The names of a model's two files. Importing them does not import torch."""

from pathlib import Path

from medic.errors import MedicError

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
EXPORTS = {"onnx": ".onnx", "torch-export": ".pt2"}
"""The endings of exported files by format."""


def model_folder(path: Path | str) -> Path:
    """Return the folder of a model, also from the path of one of its two files."""
    return Path(path).parent if Path(path).name in (DESCRIPTION, WEIGHTS) else Path(path)


def check_model_files(folder: Path) -> None:
    """Raise an error if a folder lacks one of the two files."""
    if missing := [name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()]:
        way = "give the directory of a run, or the --output of `medic calibrate`"
        raise MedicError(f"{folder} holds no model, it has no {missing[0]}: {way}")
