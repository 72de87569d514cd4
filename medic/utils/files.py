"""File helpers: atomic writes, locks between processes, hashes, and arrays in bounded memory."""

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
"""Suffixes of files that are treated as images."""
WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".pth.tar", ".bin", ".ckpt")
"""Suffixes that distinguish a weights file from named weights."""
MAX_ARRAYS = 2**30
"""Maximum uncompressed size, in bytes, of the arrays in a compressed .npz file."""

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, and rename it to `path` once it is complete and on disk.

    If the process is killed, the temporary file remains until the next write to `path`. Devices and pipes, such as
    /dev/null, are written to directly, because renaming a file over them would destroy them.
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
    """Return whether a path is a device, a pipe or under /dev, where /dev/stdout may be a link to a file."""
    return path.exists() and not path.is_dir() and (not path.is_file() or path.absolute().is_relative_to("/dev"))


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its files to the folder `path` when the block ends.

    If the process is killed in the block, the temporary folder remains until the next write to `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path) as temporary:
        yield temporary
        path.mkdir(exist_ok=True)
        for file in temporary.iterdir():
            file.replace(path / file.name)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a folder beside `path` and remove it at the end. If the process is killed, the next call removes it."""
    temporary, descriptor = _create_temporary(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _create_temporary(path: Path, flags: int) -> tuple[Path, int]:
    """Create a temporary file or folder beside `path`, locked as long as its descriptor is open."""
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
        with suppress(OSError):  # the file system may not support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():  # another process may have removed it as a leftover before it was locked
            return temporary, descriptor
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes beside `path`, which are those without a lock."""
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
    """Hold the lock file `path`. If another process holds it, wait, or raise `busy` if given."""
    try:
        held = FileLock(path).acquire(blocking=busy is None)
    except Timeout as error:
        raise busy or error from None
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock file. Returns False for files without write permission."""
    if not os.access(path, os.W_OK):
        return False
    try:
        with locked(path, BusyError()):
            return False
    except BusyError:
        return True


@contextmanager
def writing(what: str, place: Path) -> Iterator[None]:
    """Convert an `OSError` inside the context into a `MedicError` that names the path."""
    try:
        yield
    except OSError as error:
        raise unwritten(what, place, error) from error


def check_writable(what: str, path: Path, folder: bool = False) -> None:
    """Raise an error unless `path` is writable: a file in an existing folder or, with `folder`, a folder to create.

    The check creates an unnamed temporary file, because permissions alone are not conclusive: root ignores them.
    """
    place = path if folder else path.parent
    while folder and not place.exists():
        place = place.parent
    if path.is_dir() and not folder:
        raise MedicError(f"{what} {path} is a folder: pass a file")
    if _is_device(path):
        return
    if not place.exists():
        raise MedicError(f"{what} {path} cannot be written: create the folder {place}, or use another one")
    with writing(what, path), tempfile.TemporaryFile(dir=place):
        pass


def check_root(root: Path, fix: str) -> None:
    """Raise an error, ending with `fix`, if a dataset root is missing, empty or not a folder."""
    if not root.is_dir():
        raise MedicError(f"root {root} {'is not a folder' if root.exists() else 'does not exist'}{fix}")
    if next(root.iterdir(), None) is None:
        raise MedicError(f"root {root} is empty{fix}")


def check_weights_file(weights: str) -> None:
    """Raise an error if a weights file does not exist. Named weights are not checked."""
    if (weights.endswith(WEIGHT_FILES) or "/" in weights) and not Path(weights).exists():
        named = "or use named weights, such as --weights imagenet-v1 for a ResNet"
        raise MedicError(f"weights file {weights} not found: check the path, {named}")


def make_folder(what: str, path: Path) -> None:
    """Create a folder with its parents, or raise an error that names it."""
    with writing(what, path):
        path.mkdir(parents=True, exist_ok=True)


def read_object(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file. Return an empty dict if the file is missing or invalid."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # escapes undecodable names as JSON does


def csv_cell(text: str) -> str:
    """Escape a name for CSV: prepend `'` if it starts like a formula, which a spreadsheet would execute."""
    return f"'{text}" if _FORMULA.match(text) else text


def csv_name(cell: str) -> str:
    """Undo `csv_cell`."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def file_hash(path: Path) -> str:
    """Return a file's SHA-256 hash."""
    state = path.stat()
    return _file_hash(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _file_hash(path: Path, size: int, modified: int) -> str:
    """Compute the hash once per version of a file, because many runs in a sweep share a weights file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """Read the arrays in a .npz file. Raises ValueError if a small file would unpack to gigabytes."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > max(MAX_ARRAYS, path.stat().st_size):
        raise ValueError(
            f"its arrays take {size / 2**30:,.1f} GiB, more than {MAX_ARRAYS >> 30} GiB: save them uncompressed"
        )
    import numpy as np  # imported late, to keep listing commands fast

    with np.load(path, allow_pickle=False) as file:
        return dict(file)
