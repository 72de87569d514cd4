"""How files are written so that nobody ever sees half of one."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from medic.errors import unwritten


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file beside `path` and rename it once it is whole and on disk."""
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
    """Hold a folder, or a file that is made for it; if another process does, wait for it, or raise `busy`."""
    lock = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert busy is not None
            raise busy from None
        yield
    finally:
        os.close(lock)


def make_folder(what: str, path: Path) -> None:
    """Make a folder that is to be written into, and those around it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(what, path, error) from error


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote; nobody else may be writing."""
    for temporary in folder.rglob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one move."""
    with atomic_write(path) as file:
        file.write(text.encode())
