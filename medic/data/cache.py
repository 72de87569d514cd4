"""The cache directory, and a cache for computed arrays."""

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


def cached(name: str, build: Callable[[], Arrays], part: bool = False) -> Arrays:
    """Return the arrays cached under `name`, or build and cache them if the file is missing or damaged.

    Only one process builds the arrays while others wait, because concurrent builds may not fit into memory. Use `part`
    for a part of other cached arrays: if the cache cannot be written, the warning about these is enough.
    """
    path = cache_directory() / f"{name}.npz"
    if (stored := _read(path)) is not None:
        return stored
    with ExitStack() as held:
        with suppress(OSError):  # a cache that cannot be written is reported below
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_suffix(".lock")
            if is_locked(lock):
                logger.info("waiting for another process to compute %s", path.name)
            held.enter_context(locked(lock))
        if (stored := _read(path)) is not None:
            return stored
        arrays = build()
        try:
            with atomic_write(path) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            if not part:
                warn(f"could not cache {name}: {path.parent} is not writable ({error.strerror})")
    return arrays


def remove_parts(name: str) -> None:
    """Remove the cached parts of the arrays `name`, whose names begin with `NAME-`."""
    for path in cache_directory().glob(f"{name}-*"):
        with suppress(OSError):  # another process may have removed it
            path.unlink()


def _read(path: Path) -> Arrays | None:
    """Read arrays from a file. Return None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)  # reading verifies the archive's checksums
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
