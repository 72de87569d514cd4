"""Save and load checkpoints. A checkpoint is written atomically, so it is either complete or absent."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from medic.errors import MedicError, unread
from medic.utils.files import atomic_write

FORMAT = 2


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state made up of tensors, numbers, strings and containers, atomically replacing any existing file."""
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as file:
        try:
            torch.save({"medic_checkpoint": FORMAT, **state}, file)
        except RuntimeError as error:  # torch's writer hides the cause
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing code from the file."""
    try:
        with ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch writes checksums but does not verify them
                raise BadZipFile("checksum mismatch")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise unread(path, error) from error
    except Exception as error:  # zipfile, pickle and torch raise various errors for corrupted files
        raise MedicError(
            f"checkpoint {path} is corrupted or not a medic checkpoint: delete it to restart the run"
        ) from error
    if not isinstance(state, dict) or state.get("medic_checkpoint") != FORMAT:
        raise MedicError(f"checkpoint {path} was written by a different medic version: delete it to restart the run")
    return state
