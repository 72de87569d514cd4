"""Plug-ins: methods, benchmarks and scores of installed packages, found by their entry points.

Entry points are looked for only when a name is not registered, so that a command waits for no plug-in that it does not
use. Files that are named with `--import` are in `medic.config.imports`.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from medic.errors import MedicError, check_choice, first_line, respelled, warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Plugin(NamedTuple):
    """Code from outside of this package that a run uses: its file, module or distribution, and its hash."""

    name: str
    sha256: str


def installed(group: str) -> "list[EntryPoint]":
    """Return the entry points of a group; none of them is loaded."""
    from importlib.metadata import entry_points  # takes longer than the rest of this module

    return list(entry_points(group=group))


class Group(Generic[T]):
    """A group of entry points, and the registry that their objects are added to."""

    def __init__(self, group: str, noun: str, kind: type[T], registry: dict[str, T]) -> None:
        """`noun` is what messages call an entry, `kind` the class of the entries."""
        self.group, self.noun, self.kind, self.registry = group, noun, kind, registry
        self.sources: dict[str, Plugin] = {}
        """The plug-ins of entries that entry points have added, by name."""

    def find(self, name: str) -> T:
        """Return an entry by its name in any case, from an entry point if it is not registered."""
        if name not in self.registry:
            self._search(name)
        return self.registry[check_choice(self.noun, respelled(name, self.registry), self.registry)]

    def load(self) -> None:
        """Add the entries of all entry points; a broken one is noted and left out."""
        for point in installed(self.group):
            try:
                self._add(point)
            except MedicError as error:
                warn(str(error))

    def _search(self, name: str) -> None:
        """Load entry points until one of them has added the name: first those that are called so."""
        points = installed(self.group)
        called = [point for point in points if point.name == name]
        if len(called) > 1:
            owners = " and ".join(sorted(map(_owner, called)))
            raise MedicError(f"{self.noun} {name!r} is an entry point of {owners}: uninstall one of them")
        for point in called:
            self._add(point)
        for point in points:
            if name in self.registry:
                return
            if point not in called:
                try:
                    self._add(point)
                except MedicError as error:
                    warn(str(error))

    def _add(self, point: "EntryPoint") -> None:
        """Load an entry point and register its objects, or none of them."""
        where = f"entry point {point.name!r} of {_owner(point)}"
        try:
            loaded = point.load()
            objects = [loaded] if isinstance(loaded, self.kind) or not isinstance(loaded, Iterable) else list(loaded)
            source = Plugin(_owner(point), module_hash(point.module))
        except (Exception, SystemExit) as error:  # whatever another package does
            raise MedicError(f"{where} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
        entries: dict[str, T] = {}
        for one in objects:
            if not isinstance(one, self.kind):
                kind = f"{self.kind.__name__}, or several of them"
                raise MedicError(f"{where} is a {type(one).__name__}: group {self.group} takes a {kind}")
            name = str(one.name)  # type: ignore[attr-defined]
            if self.registry.get(name, one) is not one:
                raise MedicError(f"{where} defines the {self.noun} {name!r}, which exists: give it another name")
            entries[name] = one
        self.registry.update(entries)
        self.sources.update(dict.fromkeys(entries, source))


def _owner(point: "EntryPoint") -> str:
    """Return the distribution of an entry point with its version."""
    return "an unknown distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def module_hash(name: str) -> str:
    """Return the hash of an imported module: of its file, or of all Python files of its package."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules[".".join(parts[:end])]
        file = getattr(module, "__file__", None)  # None for a namespace, whose parts may be of several distributions
        if file is not None:
            package = hasattr(module, "__path__")
            return files_hash(Path(file).parent if package else Path(file))
    raise MedicError(f"module {name!r} has no file: give one that is a file or a package")


def files_hash(path: Path) -> str:
    """Return the sha256 of a file, or of the Python files in a folder with their places."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")):
        digest.update(f"{file.relative_to(path).as_posix()}\0{files_hash(file)}\n".encode())
    return digest.hexdigest()


_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_module(name: str) -> bool:
    """Whether a name is that of a module, such as `my_methods.calm`, and not of a file."""
    return not name.endswith(".py") and _MODULE.fullmatch(name) is not None


def check_files(names: str | Iterable[str]) -> None:
    """Raise an error if a file to import does not exist."""
    for name in absolute(names):
        if not is_module(name) and not Path(name).exists():
            raise MedicError(f"--import {name} does not exist: give a Python file, or the name of a module")


def absolute(names: str | Iterable[str]) -> Iterator[str]:
    """Yield what `--import` names, with absolute paths of files, so that it means the same in every process."""
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, list | tuple) or not all(isinstance(name, str) for name in several):
        raise MedicError(f"imports {names!r}: give Python files or modules")
    for name in several:
        yield name if is_module(name) else str(Path(name).absolute())
