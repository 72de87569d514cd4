"""The files of a run directory, and the check that a folder is one. Importing this module does not import torch."""

import re
from pathlib import Path

from medic.errors import MedicError, counted

HASH = re.compile(r"[0-9a-f]{16}")
"""The hash of a run's settings, which is the name of its directory unless `--name` gives another."""
CONFIG = "config.json"
"""The complete settings."""
USER_SETTINGS = "settings.json"
"""The settings as the user wrote them."""
_CONFIG_0_3, _USER_SETTINGS_0_3 = "config.yaml", "asked.yaml"
"""The names of the same files in version 0.3."""
ENVIRONMENT = "environment.json"
"""Versions, commit, hardware, and the hashes of images and weights."""
LOCK = ".lock"
"""Held by the process that executes the run."""
CHECKPOINT = "checkpoint/last.pt"
"""The complete state of training."""
ITERATION = "checkpoint/iteration"
"""The iteration of the checkpoint, for people and for `medic runs`."""
RECORDS = "results.jsonl"
"""The evaluations, one line each."""
PREDICTIONS = "predictions.npz"
"""The outputs for every evaluated image."""
DONE = "done"
"""Written last, with the duration."""
ERROR = "error.json"
"""The reasons of failed attempts, written by a sweep. It stays when a later attempt succeeds."""
MAX_LISTED = 3
"""The number of runs of a folder that a message names."""


def config_file(path: Path) -> str:
    """Return the name of the file with the complete settings of a run."""
    return _CONFIG_0_3 if (path / _CONFIG_0_3).exists() and not (path / CONFIG).exists() else CONFIG


def user_settings_file(path: Path) -> str:
    """Return the name of the file with the settings that the user of a run wrote."""
    old = (path / _USER_SETTINGS_0_3).exists() and not (path / USER_SETTINGS).exists()
    return _USER_SETTINGS_0_3 if old else USER_SETTINGS


def is_run(path: Path) -> bool:
    """Return whether a folder is the directory of a run, finished or not."""
    return (path / config_file(path)).exists()


def runs_inside(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder."""
    return sorted({file.parent for name in (CONFIG, _CONFIG_0_3) for file in folder.glob(f"*/{name}")})


def check_run(path: Path) -> None:
    """Raise an error if a path is not the directory of a finished run."""
    if path.is_file():
        raise MedicError(f"{path} is a file: give the directory of a run, which training prints when it ends")
    if not path.is_dir():
        raise MedicError(f"run {path} does not exist: give the directory that training prints when it ends")
    config = config_file(path)
    missing = [name for name in (config, DONE) if not (path / name).exists()]
    if missing == [DONE]:
        again = f"medic train --config {path / config} --output {path.parent}"
        raise MedicError(f"run {path} is unfinished: resume it with `{again}`")
    if missing:
        raise _no_run(path, missing[0])


def _no_run(path: Path, missing: str) -> MedicError:
    """Return the error for a folder that is not a run, perhaps the one around several runs."""
    inside = [run for run in runs_inside(path) if (run / DONE).exists()]
    if not inside:
        way = "give the directory that training prints when it ends"
        return MedicError(f"{path} is not a run directory, it has no {missing}: {way}")
    some = ", ".join([*map(str, inside[:MAX_LISTED]), *(["…"] if len(inside) > MAX_LISTED else [])])
    way = f"give one of them, {some}; `medic runs {path}` lists them"
    return MedicError(f"{path} contains {counted(len(inside), 'finished run')}: {way}")
