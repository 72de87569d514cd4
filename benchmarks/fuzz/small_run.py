"""A run of a fraction of a second, finished and interrupted."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def settings(folder: Path, **others: Any) -> dict[str, Any]:
    """Return the settings of a run on the images that `write_images` writes."""
    defaults = {
        "dataset": "folder", "root": str(folder / "images"), "target": "z", "known": ["cat", "dog"],
        "backbone": "convnet", "image_size": 32, "method": "erm", "iterations": 4, "evaluate_every": 2,
        "checkpoint_every": 1, "batch_size": 2, "device": "cpu", "track": "none", "threads": 1,
    }  # fmt: skip
    return {**defaults, **others}


def write_images(folder: Path) -> None:
    """Write three domains of three classes."""
    draw = np.random.default_rng(0)
    for domain in "xyz":
        for label in ("cat", "dog", "owl"):
            place = folder / "images" / domain / label
            place.mkdir(parents=True)
            for index in range(5):
                Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(place / f"{index}.png")


class _Interrupted(BaseException):
    pass


def interrupt(run_settings: dict[str, Any]) -> Path:
    """Train a run up to its last evaluation, and return its directory: a checkpoint of the last iteration but one."""
    from medic.runs.train import train

    def stop(record: Any) -> None:
        if record["iteration"] == run_settings["iterations"]:
            raise _Interrupted

    with contextlib.suppress(_Interrupted):
        train(run_settings, quiet=True, watch=stop)
    return only_run(Path(run_settings["output"]))


def make_runs(folder: Path) -> None:
    """Write the images, a finished run below `finished` and the same run, interrupted, below `unfinished`."""
    import medic

    write_images(folder)
    medic.train(**settings(folder, output=str(folder / "finished")), quiet=True)
    interrupt(settings(folder, output=str(folder / "unfinished")))


def only_run(folder: Path) -> Path:
    """Return the directory of the only run in a folder."""
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return run


def copy(source: Path, target: Path) -> Path:
    """Replace a folder of runs by a copy of another, and return the run in it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return only_run(target)
