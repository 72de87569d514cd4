"""Plug-ins: methods, benchmarks and scores from installed packages, found through entry points.

Entry points are searched only for names that are not registered, so that commands do not load plug-ins they do not use.
For files passed with `--import`, see `medic.config.imports`.
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
    """External code that a run uses: the name of its file, module or distribution, and its hash."""

    name: str
    sha256: str


def installed(group: str) -> "list[EntryPoint]":
    """Return the entry points in a group without loading them."""
    from importlib.metadata import entry_points  # takes longer than the rest of this module

    return list(entry_points(group=group))


loaded_packages: set[str] = set()
"""Packages whose entry points have been loaded. Importing them may also register parts, such as penalties."""


class Group(Generic[T]):
    """A group of entry points, with the registry to which they add entries."""

    def __init__(self, group: str, noun: str, kind: type[T], registry: dict[str, T]) -> None:
        """`noun` names an entry in messages, and `kind` is the class of the entries."""
        self.group, self.noun, self.kind, self.registry = group, noun, kind, registry
        self.sources: dict[str, Plugin] = {}
        """The plug-in behind each entry that an entry point has added, keyed by entry name."""

    def find(self, name: str) -> T:
        """Return an entry by its case-insensitive name. Searches entry points if the name is not registered."""
        if name not in self.registry:
            self._search(name)
        return self.registry[check_choice(self.noun, respelled(name, self.registry), self.registry)]

    def load(self) -> None:
        """Add the entries of all entry points. Broken entry points trigger a warning and are skipped."""
        for point in installed(self.group):
            try:
                self._add(point)
            except MedicError as error:
                warn(str(error))

    def _search(self, name: str) -> None:
        """Load entry points until one of them adds the name, starting with those that have this name."""
        points = installed(self.group)
        called = [point for point in points if point.name == name]
        if len(called) > 1:
            owners = " and ".join(sorted(map(_owner, called)))
            raise MedicError(f"{self.noun} {name!r} is defined by both {owners}: uninstall one of them")
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
        """Load an entry point and register all of its objects. If one is invalid, register none of them."""
        where = f"entry point {point.name!r} of {_owner(point)}"
        try:
            loaded = point.load()
            loaded_packages.add(point.module.partition(".")[0])
            objects = [loaded] if isinstance(loaded, self.kind) or not isinstance(loaded, Iterable) else list(loaded)
            source = Plugin(_owner(point), module_hash(point.module))
        except (Exception, SystemExit) as error:  # external code may raise anything
            raise MedicError(f"{where} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
        entries: dict[str, T] = {}
        for one in objects:
            if not isinstance(one, self.kind):
                kind = f"{self.kind.__name__} or several of them"
                raise MedicError(f"{where} must be a {kind} for group {self.group}, got {type(one).__name__}")
            name = str(one.name)  # type: ignore[attr-defined]
            if self.registry.get(name, one) is not one:
                raise MedicError(f"{where} defines {self.noun} {name!r}, which already exists: rename it")
            entries[name] = one
        self.registry.update(entries)
        self.sources.update(dict.fromkeys(entries, source))


def _owner(point: "EntryPoint") -> str:
    """Return the name and version of the distribution that defines an entry point."""
    return "an unknown distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def module_hash(name: str) -> str:
    """Return the hash of an imported module: of its file, or of all Python files in its package."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules[".".join(parts[:end])]
        file = getattr(module, "__file__", None)  # None for namespace packages, which may span several distributions
        if file is not None:
            package = hasattr(module, "__path__")
            return files_hash(Path(file).parent if package else Path(file))
    raise MedicError(f"module {name!r} has no source file: use a module or package with Python files")


def files_hash(path: Path) -> str:
    """Return the SHA-256 hash of a file, or of all Python files in a folder with their relative paths."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")):
        digest.update(f"{file.relative_to(path).as_posix()}\0{files_hash(file)}\n".encode())
    return digest.hexdigest()


_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_module(name: str) -> bool:
    """Return whether a name is a module, such as `my_methods.calm`, rather than a file."""
    return not name.endswith(".py") and _MODULE.fullmatch(name) is not None


def check_files(names: str | Iterable[str]) -> None:
    """Raise an error if a file to import does not exist."""
    for name in absolute(names):
        if not is_module(name) and not Path(name).exists():
            raise MedicError(f"--import {name} not found: pass a Python file or a module name")


def absolute(names: str | Iterable[str]) -> Iterator[str]:
    """Yield imports with absolute file paths, so that they mean the same in every process."""
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, list | tuple) or not all(isinstance(name, str) for name in several):
        raise MedicError(f"imports must be Python files or module names, got {names!r}")
    for name in several:
        yield name if is_module(name) else str(Path(name).absolute())
