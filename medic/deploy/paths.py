"""Paths of images from arguments: files, folders, patterns and lists, one by one and never all in memory."""

import errno
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import chain
from typing import IO

from medic.data.decode import SUFFIXES
from medic.errors import MedicError

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
    | anything else | itself, also if it does not exist |

    Mistakes are raised at once: a folder without images, a pattern without a match, a list that cannot be opened.
    """
    return chain.from_iterable([_paths_of(argument) for argument in arguments])


def _paths_of(argument: str) -> Iterable[str]:
    if argument == STANDARD_INPUT:
        return _lines(sys.stdin.buffer, "standard input")
    if argument.startswith(LIST):
        name = argument[len(LIST) :]
        try:
            return _lines(open(name, "rb"), name)
        except (OSError, ValueError) as error:  # a ValueError is a path with a NUL
            raise MedicError(f"list {name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if os.path.isdir(argument):
        suffixes = ", ".join(sorted(SUFFIXES))
        return _some(walk(argument), f"folder {argument} has no images: no file ends in {suffixes}")
    if _MAGIC.search(argument) and not os.path.lexists(argument):
        return _some(_matches(argument), f"pattern {argument} matches no file")
    return (argument,)


def _some(paths: Iterator[str], otherwise: str) -> Iterator[str]:
    """Return the paths, or raise an error if there are none."""
    first = next(paths, None)
    if first is None:
        raise MedicError(otherwise)
    return chain((first,), paths)


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a list, but blank ones."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
        if len(line) == MAX_LINE:
            raise MedicError(f"{name}, line {number}: more than {MAX_LINE:,} bytes are not a path; give one per line")
        if line.strip():
            yield os.fsdecode(line.removesuffix(b"\n").removesuffix(b"\r"))


class Pattern:
    """A pattern of names and `**`, which is matched one folder at a time.

    A state is the number of parts that the path of a folder has matched. A path may be in several states, because `**`
    matches any number of folders. The last two states are a path that matches, and one below a folder that matches.
    """

    def __init__(self, parts: Sequence[str] = ()) -> None:
        several = [*parts, "*"] if parts and parts[-1] == "**" else parts
        self._parts = [None if part == "**" else re.compile(translate(part)) for part in several]
        self._hidden = [part.startswith(".") for part in several]
        self._matched = len(several)
        self.start = self._without_folders({0})
        """The states of the folder in which the pattern starts."""

    def follow(self, states: set[int], name: str) -> set[int]:
        """Return the states of a file or folder inside a folder with some states."""
        reached = set()
        for state in states:
            if state >= self._matched:
                reached |= set() if name.startswith(".") else {self._matched + 1}
            elif name.startswith(".") and not self._hidden[state]:
                continue
            elif (part := self._parts[state]) is None:
                reached.add(state)
            elif part.match(name):
                reached.add(state + 1)
        return self._without_folders(reached)

    def takes(self, states: set[int], name: str) -> bool:
        """Whether a file is one of those that the pattern stands for: below a folder that matches, images alone."""
        image = os.path.splitext(name)[1].lower() in SUFFIXES
        return self._matched in states or (self._matched + 1 in states and image)

    def _without_folders(self, states: set[int]) -> set[int]:
        """Add the states that are reached if `**` matches no folder."""
        reached = set(states)
        for state in states:
            while state < self._matched and self._parts[state] is None:
                state += 1
                reached.add(state)
        return reached


EVERY_IMAGE = Pattern()
"""Matches the folder in which it starts, and so stands for all images below it."""


def _matches(pattern: str) -> Iterator[str]:
    """Return the files that a pattern matches, and the images below folders that it matches."""
    parts = re.split("/+", pattern)
    plain = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    top = "/".join([*parts[:plain], ""])
    return walk(top, Pattern([part for part in parts[plain:] if part])) if os.path.isdir(top or ".") else iter(())


def walk(
    folder: str,
    pattern: Pattern = EVERY_IMAGE,
    states: set[int] | None = None,
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[str]:
    """Yield the files below a folder that a pattern stands for, ordered by their paths.

    Of the open folders only the names are kept. Links are followed, but not to a folder above. A folder that cannot be
    read is reported and yielded itself, so that it is not lost among many files.
    """
    states = pattern.start if states is None else states
    try:
        status = os.stat(folder or ".")
        if len(above) == MAX_DEPTH:
            raise OSError(errno.ELOOP, f"it is more than {MAX_DEPTH} folders deep")
        with os.scandir(folder or ".") as entries:
            # The slash sorts a folder as the paths of its files are sorted.
            names = sorted(entry.name + "/" * _is_folder(entry) for entry in entries)
    except OSError as error:
        logger.warning("folder %s cannot be read: %s", folder, error.strerror)
        yield folder
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        logger.warning("folder %s is a link to a folder above it: its images are not listed twice", folder)
        return
    for name in names:
        plain = name.removesuffix("/")
        reached, path = pattern.follow(states, plain), os.path.join(folder, plain)
        if not name.endswith("/"):
            if pattern.takes(reached, name):
                yield path
        elif reached:
            yield from walk(path, pattern, reached, above | {identity})


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder or a link to one; a link to itself is not, and is reported when it is read."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
