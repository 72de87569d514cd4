"""The cache directory, and arrays that are computed once and kept in it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from medic.errors import warn
from medic.files import atomic_write

Arrays = dict[str, NDArray[Any]]


def cache_directory() -> Path:
    """Return `$MEDIC_CACHE`, or `medic` in the user's cache directory."""
    if explicit := os.environ.get("MEDIC_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "medic"


def cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays cached under `name`; build and cache them if the file is missing or damaged."""
    path = cache_directory() / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)  # reading verifies the checksums of the archive
    except (OSError, ValueError, EOFError, BadZipFile):
        arrays = build()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warn(f"{name} is not cached: {path.parent} cannot be written: {error.strerror}")
    return arrays
