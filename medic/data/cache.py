"""The cache directory, and a cache for computed arrays."""

import logging
import os
from collections.abc import Callable, Mapping
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
    """Return the arrays cached under `name`, or build and cache them if the file is missing or damaged.

    Only one process builds the arrays while others wait, because concurrent builds may not fit into memory.
    """
    path = _path(name)
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
            _write(path, arrays)
        except OSError as error:
            warn(f"could not cache {name}: {path.parent} is not writable ({error.strerror})")
    return arrays


def build_in_parts(name: str, parts: Mapping[str, Callable[[], Arrays]]) -> Arrays:
    """Build arrays as `cached(name, …)` requires, from parts that contain some of their rows.

    Finished parts are cached under `NAME-PART` until the last one is built, so that an interrupted computation resumes.
    """
    built, paths = [], [_path(f"{name}-{part}") for part in parts]
    for path, build in zip(paths, parts.values(), strict=True):
        if (arrays := _read(path)) is None:
            arrays = build()
            with suppress(OSError):  # `cached` reports a cache that cannot be written
                _write(path, arrays)
        built.append(arrays)
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return {key: np.concatenate([arrays[key] for arrays in built]) for key in built[0]}


def _path(name: str) -> Path:
    return cache_directory() / f"{name}.npz"


def _write(path: Path, arrays: Arrays) -> None:
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _read(path: Path) -> Arrays | None:
    """Read arrays from a file. Return None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)  # reading verifies the archive's checksums
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
