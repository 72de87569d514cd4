"""Files: written atomically, hashed, locked between processes, and arrays in bounded memory."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from medic.errors import BusyError, MedicError, unwritten

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
"""Endings of the files in a folder that are taken for images."""
WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".pth.tar", ".bin", ".ckpt")
"""Endings by which weights are a file and not a name."""
MAX_ARRAYS = 2**30
"""Bytes that the arrays of a .npz file may have if it is smaller itself, because it is compressed."""

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file beside `path`, and rename it once it is complete and on disk.

    A killed process leaves its temporary file behind; the next write to `path` removes it. A device or a pipe, such as
    /dev/null, is written to directly: renaming a file over it would destroy it.
    """
    if _is_device(path):
        with path.open("wb") as file:
            yield file
        return
    temporary, descriptor = _create_temporary(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Whether a path is a device or a pipe, or below /dev: there, /dev/stdout may be a link to a file."""
    return path.exists() and not path.is_dir() and (not path.is_file() or path.absolute().is_relative_to("/dev"))


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to `path` once the block ends. `path` must be an empty folder or missing.

    A killed process leaves its temporary folder behind; the next write to `path` removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path) as temporary:
        yield temporary
        temporary.replace(path)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a folder beside `path`, and remove it at the end, or if this process is killed, at the next call."""
    temporary, descriptor = _create_temporary(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _create_temporary(path: Path, flags: int) -> tuple[Path, int]:
    """Create a file or folder beside `path`, locked while its descriptor is open, so until its process is killed."""
    _remove_leftovers(path)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        if flags & os.O_DIRECTORY:
            temporary.mkdir()
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():  # another process may have taken it for a leftover, before it was locked
            return temporary, descriptor
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed processes left beside `path`: those that no process has locked."""
    temporary = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.tmp")
    with suppress(OSError):
        for left in [entry for entry in path.parent.iterdir() if temporary.fullmatch(entry.name)]:
            with suppress(OSError):
                descriptor = os.open(left, os.O_NOFOLLOW | (os.O_RDONLY if left.is_dir() else os.O_RDWR))
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                finally:
                    os.close(descriptor)


@contextmanager
def locked(path: Path, busy: Exception | None = None) -> Iterator[None]:
    """Hold the lock file `path`; if another process holds it, wait, or raise `busy`."""
    try:
        held = FileLock(path).acquire(blocking=busy is None)
    except Timeout as error:
        raise busy or error from None
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock file, as far as this user may see."""
    if not os.access(path, os.W_OK):
        return False
    try:
        with locked(path, BusyError()):
            return False
    except BusyError:
        return True


@contextmanager
def writing(what: str, place: Path) -> Iterator[None]:
    """Raise a `MedicError` that names the place, if the system refuses to write inside."""
    try:
        yield
    except OSError as error:
        raise unwritten(what, place, error) from error


def check_writable(what: str, path: Path, folder: bool = False) -> None:
    """Refuse a path that cannot be written: a file in a folder that exists, or a `folder`, which may be created.

    Only writing tells, since root may write where permissions do not allow it. The file that tries it has no name.
    """
    place = path if folder else path.parent
    while folder and not place.exists():
        place = place.parent
    if path.is_dir() and not folder:
        raise MedicError(f"{what} {path} is a folder: name a file")
    if _is_device(path):
        return
    if not place.exists():
        raise MedicError(f"{what} {path} cannot be written, there is no folder {place}: create it, or name another")
    with writing(what, path), tempfile.TemporaryFile(dir=place):
        pass


def check_root(root: Path, fix: str) -> None:
    """Raise an error, which ends with `fix`, if the root of a dataset is missing, not a folder, or empty."""
    if not root.is_dir():
        raise MedicError(f"root {root} {'is not a folder' if root.exists() else 'does not exist'}{fix}")
    if next(root.iterdir(), None) is None:
        raise MedicError(f"root {root} is empty{fix}")


def check_weights_file(weights: str) -> None:
    """Refuse a file of weights that does not exist; other names are left to the backbone."""
    if (weights.endswith(WEIGHT_FILES) or "/" in weights) and not Path(weights).exists():
        named = "or use weights by name, such as --weights imagenet-v1 for a ResNet"
        raise MedicError(f"weights {weights} do not exist: check the path, {named}")


def make_folder(what: str, path: Path) -> None:
    """Create a folder that will be written into."""
    with writing(what, path):
        path.mkdir(parents=True, exist_ok=True)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file does not exist or cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a name that is no text, as JSON escapes it


def csv_cell(text: str) -> str:
    """Return a name as a cell of CSV: after `'` if it begins like a formula, which a spreadsheet would execute."""
    return f"'{text}" if _FORMULA.match(text) else text


def csv_name(cell: str) -> str:
    """Return the name that `csv_cell` made a cell of."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    state = path.stat()
    return _file_hash(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _file_hash(path: Path, size: int, modified: int) -> str:
    """Compute the hash once per version of the file: a sweep has many runs with the same weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """Return the arrays of a .npz file. A small file that unpacks to gigabytes is a ValueError."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > max(MAX_ARRAYS, path.stat().st_size):
        raise ValueError(
            f"it unpacks to {size / 2**30:,.1f} GiB, more than {MAX_ARRAYS >> 30} GiB: save it uncompressed"
        )
    import numpy as np  # which commands that only list do not wait for

    with np.load(path, allow_pickle=False) as file:
        return dict(file)
