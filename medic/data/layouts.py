"""Where a benchmark's images lie: the layouts that people already have on disk."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from medic.data.listing import Entry, ImageList
from medic.data.readers import check_root, list_lines, walk
from medic.errors import MedicError

HELD_OUT = frozenset({"val", "crossval"})
SPLITS = frozenset({"train", "test", "full"}) | HELD_OUT


@dataclass(frozen=True)
class Layout:
    """One way of keeping a benchmark: the folders it may be in, and whether domains have parts of their own.

    `split` says that `<domain>/<train|val|…>/<class>/` is expected instead of `<domain>/<class>/`. `lists` are
    patterns, relative to the folder, of official lists of validation images.
    """

    name: str
    folders: tuple[str, ...]
    split: bool = False
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naming:
    """The names of domains and classes, and how else they are written. Case, spaces and underscores do not matter."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    """Empty where any class folder is one."""
    domain_aliases: Mapping[str, str] = field(default_factory=dict)
    class_aliases: Mapping[str, str] = field(default_factory=dict)

    def domain(self, folder: str) -> str | None:
        """The domain that a folder holds, if any."""
        return _lookup(folder, self.domains, self.domain_aliases)

    def label(self, folder: str) -> str | None:
        """The class that a folder holds, if any."""
        return _lookup(folder, self.classes, self.class_aliases) if self.classes else folder


@dataclass(frozen=True)
class Found:
    """A benchmark found on disk: its images, how it is laid out, and what lies beside it."""

    layout: Layout
    folder: Path
    listing: ImageList
    extra: tuple[str, ...]
    """Folders that belong to no domain or class of the benchmark, and are left alone."""


def find(name: str, root: Path, layouts: Sequence[Layout], naming: Naming, dropped: frozenset[str]) -> Found | None:
    """Find a benchmark below a root in the first layout that has all of its domains; None if there is none."""
    check_root(root)
    for layout, folder in _candidates(root, layouts):
        here = {naming.domain(path.name) for path in folder.iterdir() if path.is_dir()}
        if here >= set(naming.domains) and _has_splits(folder, naming) == layout.split:
            return _read(name, layout, folder, naming, dropped)
    return None


def missing_domains(root: Path, layouts: Sequence[Layout], naming: Naming) -> set[str]:
    """The domains that the most complete of the possible folders lacks."""
    lacking = [set(naming.domains)]
    for _, folder in _candidates(root, layouts):
        lacking.append(set(naming.domains) - {naming.domain(path.name) for path in folder.iterdir()})
    return min(lacking, key=len)


def _candidates(root: Path, layouts: Sequence[Layout]) -> Iterator[tuple[Layout, Path]]:
    for layout in layouts:
        for folder in ("", *layout.folders):
            if (root / folder).is_dir():
                yield layout, root / folder


def _has_splits(folder: Path, naming: Naming) -> bool:
    """Whether the domains in a folder are divided into training and validation parts."""
    domains = [path for path in folder.iterdir() if path.is_dir() and naming.domain(path.name)]
    return any(child.is_dir() and child.name in SPLITS for domain in domains for child in domain.iterdir())


def _read(name: str, layout: Layout, folder: Path, naming: Naming, dropped: frozenset[str]) -> Found:
    official = _official(layout, folder)
    entries, extra = [], set()
    for file, parts in walk(folder):
        domain = naming.domain(parts[0])
        depth = 2 if layout.split else 1
        label = naming.label(parts[depth]) if len(parts) > depth + 1 else None
        if domain is None or label is None:
            extra.add(str(PurePosixPath(*parts[: depth + 1 if domain else 1])))
            continue
        if layout.split and parts[1] == "full" and (folder / parts[0] / "train").is_dir():
            continue  # it holds the same images once more
        shown = str(PurePosixPath(*parts))
        if shown in dropped:
            continue
        held_out = parts[1] in HELD_OUT if layout.split else (shown in official if official else None)
        entries.append(Entry(file, shown, domain, label, held_out=held_out))
    if not entries:
        raise MedicError(f"{folder} has the domains of {name} but no images of its classes")
    classes = naming.classes or tuple(sorted({entry.label for entry in entries}, key=str.casefold))
    return Found(layout, folder, ImageList.of(name, entries, naming.domains, classes), tuple(sorted(extra)))


def _official(layout: Layout, folder: Path) -> set[str]:
    """The images that official lists keep for validation. Their labels are not read: a folder says the class."""
    files = [file for pattern in layout.lists for file in folder.glob(pattern)]
    return {path for file in files for path, _ in list_lines(file)}


def _lookup(folder: str, names: Sequence[str], aliases: Mapping[str, str]) -> str | None:
    known = {folded(name): name for name in names} | {folded(alias): name for alias, name in aliases.items()}
    return known.get(folded(folder))


def folded(name: str) -> str:
    """A name without what people write differently: case, spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]", "", name).casefold()
