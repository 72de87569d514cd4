"""File names in a run directory, and checks for run directories. Importing this module does not import torch."""

import re
from pathlib import Path

from medic.errors import MedicError, counted

HASH = re.compile(r"[0-9a-f]{16}")
"""Pattern of a run's hash, which names the run directory unless `--name` is set."""
CONFIG = "config.json"
"""Complete settings."""
USER_SETTINGS = "settings.json"
"""Settings as the user wrote them."""
_CONFIG_0_3, _USER_SETTINGS_0_3 = "config.yaml", "asked.yaml"
"""Names of the same files in version 0.3."""
ENVIRONMENT = "environment.json"
"""Versions, commit, hardware, and hashes of the images and weights."""
LOCK = ".lock"
"""Lock file held by the process that executes the run."""
CHECKPOINT = "checkpoint/last.pt"
"""Complete training state."""
ITERATION = "checkpoint/iteration"
"""Iteration of the checkpoint, for people and for `medic runs`."""
RECORDS = "results.jsonl"
"""Evaluations, one per line."""
PREDICTIONS = "predictions.npz"
"""Model outputs for every evaluated image."""
DONE = "done"
"""File that marks a finished run, written last. It contains the duration and checksums."""
ERROR = "error.json"
"""Reasons for failed attempts, written by a sweep and kept if a later attempt succeeds."""
MAX_LISTED = 3
"""Maximum number of entries that a message lists."""


def config_file(path: Path) -> str:
    """Return the name of the file with a run's complete settings."""
    return _CONFIG_0_3 if (path / _CONFIG_0_3).exists() and not (path / CONFIG).exists() else CONFIG


def user_settings_file(path: Path) -> str:
    """Return the name of the file with a run's settings as the user wrote them."""
    old = (path / _USER_SETTINGS_0_3).exists() and not (path / USER_SETTINGS).exists()
    return _USER_SETTINGS_0_3 if old else USER_SETTINGS


def is_run(path: Path) -> bool:
    """Return whether a folder is a run directory, finished or not."""
    return (path / config_file(path)).exists()


def runs_inside(folder: Path) -> list[Path]:
    """Return the run directories in a folder."""
    return sorted({file.parent for name in (CONFIG, _CONFIG_0_3) for file in folder.glob(f"*/{name}")})


def check_run(path: Path) -> None:
    """Raise an error if a path is not a finished run directory."""
    if path.is_file():
        raise MedicError(f"{path} is a file: pass a run directory, which training prints when it ends")
    if not path.is_dir():
        raise MedicError(f"run {path} does not exist: pass the directory that training prints when it ends")
    config = config_file(path)
    missing = [name for name in (config, DONE) if not (path / name).exists()]
    if missing == [DONE]:
        again = f"medic train --config {path / config} --output {path.parent}"
        raise MedicError(f"run {path} is unfinished: resume it with `{again}`")
    if missing:
        raise _no_run(path, missing[0])


def _no_run(path: Path, missing: str) -> MedicError:
    """Return the error for a folder that is not a run directory; it may contain several runs."""
    inside = [run for run in runs_inside(path) if (run / DONE).exists()]
    if not inside:
        way = "pass the directory that training prints when it ends"
        return MedicError(f"{path} is not a run directory ({missing} is missing): {way}")
    some = ", ".join([*map(str, inside[:MAX_LISTED]), *(["…"] if len(inside) > MAX_LISTED else [])])
    way = f"pass one of them, such as {some}; `medic runs {path}` lists them all"
    return MedicError(f"{path} contains {counted(len(inside), 'finished run')}: {way}")
