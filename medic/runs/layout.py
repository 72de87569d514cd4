"""The files of a run directory, and the check that a folder is one. Importing this module does not import torch."""

import re
from pathlib import Path

from medic.errors import MedicError, counted

HASH = re.compile(r"[0-9a-f]{16}")
"""The hash of a run's settings, which is the name of its directory unless `--name` gives another."""
CONFIG = "config.yaml"
"""The complete settings."""
ASKED = "asked.yaml"
"""The settings that were asked for, as they were given."""
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
SHOWN = 3
"""The number of runs of a folder that a message names."""


def check_run(path: Path) -> None:
    """Raise an error if a path is not the directory of a finished run."""
    if not path.is_dir():
        raise MedicError(f"run {path} does not exist: give the directory that training prints when it ends")
    missing = [name for name in (CONFIG, DONE) if not (path / name).exists()]
    if missing == [DONE]:
        again = f"medic train --config {path / CONFIG} --output {path.parent}"
        raise MedicError(f"run {path} is unfinished: resume it with `{again}`")
    if missing:
        raise _no_run(path, missing[0])


def _no_run(path: Path, missing: str) -> MedicError:
    """Return the error for a folder that is not a run, perhaps the one around several runs."""
    inside = sorted(file.parent for file in path.glob(f"*/{CONFIG}") if (file.parent / DONE).exists())
    if not inside:
        way = "give the directory that training prints when it ends"
        return MedicError(f"{path} is not a run directory, it has no {missing}: {way}")
    some = ", ".join([*map(str, inside[:SHOWN]), *(["…"] if len(inside) > SHOWN else [])])
    way = f"give one of them, {some}; `medic runs {path}` lists them"
    return MedicError(f"{path} contains {counted(len(inside), 'finished run')}: {way}")
