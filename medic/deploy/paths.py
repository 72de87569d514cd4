"""Expand command-line arguments (files, folders, patterns, lists) into image paths, in bounded memory."""

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
"""Prefix of an argument that names a file with a list of paths."""
MAX_LINE = 2**16
"""Maximum bytes per line of a list, far longer than any path the system allows."""
MAX_DEPTH = 200
"""Maximum depth of nested folders."""
_MAGIC = re.compile(r"[*?[]")


def image_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Return the image paths that the arguments refer to, in order.

    | argument | paths |
    |---|---|
    | a folder | all files below it with an image suffix, sorted; skips hidden files |
    | a pattern with `*`, `?`, `[` or `**` | all matches, sorted; matching folders are searched for images |
    | `@FILE`, or `-` for standard input | one path per line |
    | anything else | the argument itself |

    Missing paths, folders without images, patterns without matches and unreadable lists raise an error immediately.
    Lines in a list are not checked; an unreadable image gets an error in the results.
    """
    return chain.from_iterable([_paths_of(argument) for argument in arguments])


def _paths_of(argument: str) -> Iterable[str]:
    if argument == STANDARD_INPUT:
        return _lines(sys.stdin.buffer, "standard input")
    if argument.startswith(LIST):
        name = argument[len(LIST) :]
        try:
            return _list(open(name, "rb"), name)
        except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
            raise MedicError(f"list {name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if os.path.isdir(argument):
        return folder_images(argument)
    if _MAGIC.search(argument) and not os.path.lexists(argument):
        return _some(_matches(argument), f"pattern {argument} matches no files")
    try:
        os.lstat(argument)  # a broken link counts as an unreadable image
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: the path contains a NUL
        raise MedicError(
            f"path {argument} does not exist: pass images, folders, quoted patterns, @FILE or -"
        ) from error
    except OSError:
        pass  # reading the image will report the error
    return (argument,)


def folder_images(folder: str) -> Iterator[str]:
    """Return the paths of all images below a folder, sorted. Raise an error if there are none."""
    suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
    return _some(walk(folder), f"folder {folder} contains no images (supported suffixes: {suffixes})")


def _some(paths: Iterator[str], otherwise: str) -> Iterator[str]:
    """Return the paths, or raise an error with the message `otherwise` if the iterator is empty."""
    first = next(paths, None)
    if first is None:
        raise MedicError(otherwise)
    return chain((first,), paths)


def _list(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a list file, and close it at the end."""
    with file:
        yield from _lines(file, name)


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield all lines except blank ones."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
        if len(line) == MAX_LINE:
            raise MedicError(f"{name}, line {number}: longer than {MAX_LINE:,} bytes; expected one path per line")
        if line.strip():
            yield os.fsdecode(line.removesuffix(b"\n").removesuffix(b"\r"))


def _matches(pattern: str) -> Iterator[str]:
    """Return the files that match a pattern, sorted, and the images below matching folders."""
    matched = sorted(glob.iglob(pattern, recursive=True))
    paths = (path for match in matched for path in (walk(match) if os.path.isdir(match) else [match]))
    return iter(dict.fromkeys(paths))  # `**` may match a folder and also its contents


def walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Yield all files below a folder with an image suffix, sorted by path. Skips hidden files.

    Symbolic links are followed unless they lead to a parent folder. An unreadable folder is logged and also yielded, so
    that it appears among the results. Only the file names in the current folders are kept in memory.
    """
    try:
        status = os.stat(folder)
        if len(above) == MAX_DEPTH:
            raise OSError(errno.ELOOP, f"nested more than {MAX_DEPTH} folders deep")
        with os.scandir(folder) as entries:
            # The slash sorts a folder by the paths of its files.
            names = sorted(entry.name + "/" * _is_folder(entry) for entry in entries if entry.name[0] != ".")
    except OSError as error:
        logger.warning("folder %s cannot be read: %s", folder, error.strerror)
        yield folder
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        logger.warning("skipped folder %s: it links to one of its parent folders", folder)
        return
    for name in names:
        path = os.path.join(folder, name.removesuffix("/"))
        if name.endswith("/"):
            yield from walk(path, above | {identity})
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
            yield path


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a folder or a link to a folder. False for a link to itself."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
