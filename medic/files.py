"""Files that are written atomically, and locks between processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from medic.errors import unwritten


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file beside `path`, and rename it once it is complete and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, busy: Exception | None = None) -> Iterator[None]:
    """Hold the lock file `path`; if another process holds it, wait, or raise `busy`."""
    try:
        held = FileLock(path).acquire(blocking=busy is None)
    except Timeout as error:
        raise busy or error from None
    with held:
        yield


def make_folder(what: str, path: Path) -> None:
    """Create a folder that will be written into."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(what, path, error) from error


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed process. Call it only while holding the folder's lock."""
    for temporary in folder.rglob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())
