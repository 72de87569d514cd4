"""The cache directory, and arrays that are computed once and kept in it."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from medic.errors import warn
from medic.utils.files import atomic_write, is_locked, locked

logger = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


def cache_directory() -> Path:
    """Return `$MEDIC_CACHE`, or `medic` in the user's cache directory."""
    if explicit := os.environ.get("MEDIC_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "medic"


def cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays cached under `name`; build and cache them if the file is missing or damaged.

    One process builds them. Others that need them wait for it: all at once, they may not fit into memory.
    """
    path = cache_directory() / f"{name}.npz"
    if (stored := _read(path)) is not None:
        return stored
    with ExitStack() as held:
        with suppress(OSError):  # a cache that cannot be written is reported below
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_suffix(".lock")
            if is_locked(lock):
                logger.info("waiting for another process that computes %s", path.name)
            held.enter_context(locked(lock))
        if (stored := _read(path)) is not None:
            return stored
        arrays = build()
        try:
            with atomic_write(path) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            warn(f"{name} is not cached: {path.parent} cannot be written: {error.strerror}")
    return arrays


def _read(path: Path) -> Arrays | None:
    """Return the arrays of a file, or None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)  # reading verifies the checksums of the archive
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
