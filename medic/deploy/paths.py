"""Paths of images from arguments: files, folders, patterns and lists, one by one and never all in memory."""

import errno
import glob
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO

from medic.errors import MedicError
from medic.utils.files import IMAGE_SUFFIXES

logger = logging.getLogger(__name__)

STANDARD_INPUT = "-"
LIST = "@"
"""The prefix of an argument that names a list of paths."""
MAX_LINE = 2**16
"""The limit of a line of a list in bytes: far above the system's longest path."""
MAX_DEPTH = 200
"""The number of nested folders that are followed."""
_MAGIC = re.compile(r"[*?[]")


def image_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Return the paths of images that arguments name, in their order.

    | argument | paths |
    |---|---|
    | a folder | every image below it by its suffix, sorted; hidden files are skipped |
    | a pattern with `*`, `?`, `[` or `**` | what it matches, sorted; matched folders are walked |
    | `@FILE`, or `-` for standard input | the lines, one path each |
    | anything else | itself |

    Mistakes are raised at once: a path that does not exist, a folder without images, a pattern without a match, a list
    that cannot be opened. Lines of a list are not checked: what cannot be read has its place among the results.
    """
    return chain.from_iterable([_paths_of(argument) for argument in arguments])


def _paths_of(argument: str) -> Iterable[str]:
    if argument == STANDARD_INPUT:
        return _lines(sys.stdin.buffer, "standard input")
    if argument.startswith(LIST):
        name = argument[len(LIST) :]
        try:
            return _list(open(name, "rb"), name)
        except (OSError, ValueError) as error:  # a ValueError is a path with a NUL
            raise MedicError(f"list {name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if os.path.isdir(argument):
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        return _some(walk(argument), f"folder {argument} has no images: no file ends in {suffixes}")
    if _MAGIC.search(argument) and not os.path.lexists(argument):
        return _some(_matches(argument), f"pattern {argument} matches no file")
    try:
        os.lstat(argument)  # a broken link is an image that cannot be read
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a ValueError is a path with a NUL
        raise MedicError(
            f"path {argument} does not exist: give images, folders, quoted patterns, @FILE or -"
        ) from error
    except OSError:
        pass  # reading it will tell
    return (argument,)


def _some(paths: Iterator[str], otherwise: str) -> Iterator[str]:
    """Return the paths, or raise an error if there are none."""
    first = next(paths, None)
    if first is None:
        raise MedicError(otherwise)
    return chain((first,), paths)


def _list(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a list, and close it at the end; standard input stays open."""
    with file:
        yield from _lines(file, name)


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a list, but blank ones."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
        if len(line) == MAX_LINE:
            raise MedicError(f"{name}, line {number}: more than {MAX_LINE:,} bytes are not a path; give one per line")
        if line.strip():
            yield os.fsdecode(line.removesuffix(b"\n").removesuffix(b"\r"))


def _matches(pattern: str) -> Iterator[str]:
    """Return the files that a pattern matches, sorted, and the images below folders that it matches."""
    matched = sorted(glob.iglob(pattern, recursive=True))
    paths = (path for match in matched for path in (walk(match) if os.path.isdir(match) else [match]))
    return iter(dict.fromkeys(paths))  # `**` may match a folder and what is in it


def walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Yield the images below a folder by their suffix, ordered by their paths; hidden files are skipped.

    Of the open folders only the names are kept. Links are followed, but not to a folder above. A folder that cannot be
    read is reported and yielded itself, so that it is not lost among many files.
    """
    try:
        status = os.stat(folder)
        if len(above) == MAX_DEPTH:
            raise OSError(errno.ELOOP, f"it is more than {MAX_DEPTH} folders deep")
        with os.scandir(folder) as entries:
            # The slash sorts a folder as the paths of its files are sorted.
            names = sorted(entry.name + "/" * _is_folder(entry) for entry in entries if entry.name[0] != ".")
    except OSError as error:
        logger.warning("folder %s cannot be read: %s", folder, error.strerror)
        yield folder
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        logger.warning("folder %s is a link to a folder above it: its images are not listed twice", folder)
        return
    for name in names:
        path = os.path.join(folder, name.removesuffix("/"))
        if name.endswith("/"):
            yield from walk(path, above | {identity})
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
            yield path


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder or a link to one; a link to itself is not, and is reported when it is read."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
