"""Where a benchmark's images lie: the layouts that people already have on disk."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from medic.data.listing import Entry, ImageList, Part
from medic.data.readers import list_lines, walk
from medic.errors import MedicError

PARTS: Mapping[str, Part] = {"train": "train", "full": "train", "val": "val", "crossval": "val", "test": "test"}
"""What folders between a domain and its classes are called, and what their images are for."""


@dataclass(frozen=True)
class Layout:
    """One way of keeping a benchmark: the folders it may be in, and whether domains have parts of their own.

    `split` says that `<domain>/<train|val|…>/<class>/` is expected instead of `<domain>/<class>/`. `lists` has
    patterns, relative to the folder, of the official lists of validation and test images.
    """

    name: str
    folders: tuple[str, ...]
    split: bool = False
    lists: Mapping[Part, tuple[str, ...]] = field(default_factory=dict)


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
        return self._domains.get(folded(folder))

    def label(self, folder: str) -> str | None:
        """The class that a folder holds, if any."""
        return self._classes.get(folded(folder)) if self.classes else folder

    @cached_property
    def _domains(self) -> dict[str, str]:
        return _by_spelling(self.domains, self.domain_aliases)

    @cached_property
    def _classes(self) -> dict[str, str]:
        return _by_spelling(self.classes, self.class_aliases)


@dataclass(frozen=True)
class Found:
    """A benchmark found on disk: its images, how it is laid out, and what lies beside it."""

    layout: Layout
    folder: Path
    listing: ImageList
    extra: tuple[str, ...]
    """Folders that belong to no domain or class of the benchmark, and are left alone."""
    dropped: tuple[Entry, ...] = ()
    """Images that are known to be damaged, and are left out."""


def find(name: str, root: Path, layouts: Sequence[Layout], naming: Naming, dropped: frozenset[str]) -> Found | None:
    """Find a benchmark below a root in the first layout that has all of its domains; None if there is none."""
    divisible = any(layout.split for layout in layouts)  # DomainNet has a class called `train`
    for layout, folder in _candidates(root, layouts):
        here = {naming.domain(path.name) for path in folder.iterdir() if path.is_dir()}
        if here >= set(naming.domains) and (divisible and _has_splits(folder, naming)) == layout.split:
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
    """Whether the domains in a folder are divided into training and validation parts, which hold classes."""
    domains = [path for path in folder.iterdir() if path.is_dir() and naming.domain(path.name)]
    parts = [path for domain in domains for path in domain.iterdir() if path.name in PARTS and path.is_dir()]
    return any(child.is_dir() and naming.label(child.name) for part in parts for child in part.iterdir())


def _read(name: str, layout: Layout, folder: Path, naming: Naming, dropped: frozenset[str]) -> Found:
    entries: list[Entry] = []
    left_out: list[Entry] = []
    extra = set()
    for file, parts in walk(folder):
        domain = naming.domain(parts[0])
        depth = 2 if layout.split else 1
        label = naming.label(parts[depth]) if len(parts) > depth + 1 else None
        if domain is None or label is None:
            extra.add(str(PurePosixPath(*parts[: depth + 1 if domain else 1])))
            continue
        if layout.split and parts[1] == "full" and (folder / parts[0] / "train").is_dir():
            continue  # it holds the same images once more
        shown = "/".join(parts)
        entry = Entry(file, shown, domain, label, part=PARTS.get(parts[1]) if layout.split else None)
        (left_out if shown in dropped else entries).append(entry)
    if not entries:
        raise MedicError(f"{folder} has the domains of {name} but no images of its classes")
    classes = naming.classes or tuple(sorted({entry.label for entry in entries}, key=str.casefold))
    entries, problem = _with_official_parts(entries, layout, folder, naming, dropped)
    listing = replace(ImageList.of(name, entries, naming.domains, classes), parts_problem=problem)
    return Found(layout, folder, listing, tuple(sorted(extra)), tuple(left_out))


def _with_official_parts(
    entries: list[Entry], layout: Layout, folder: Path, naming: Naming, dropped: frozenset[str]
) -> tuple[list[Entry], str | None]:
    """Mark what official lists, where there are any, keep for validation and testing; the rest is for training.

    The numbers in the lists are not read: a folder says the class. Its name may be written another way there. Lists
    that do not fit the images are not used; what is wrong with them is returned.
    """

    def key(path: str) -> tuple[str | None, ...]:
        domain, label, *rest = PurePosixPath(path).parts if path.count("/") > 1 else ("", "", path)
        return naming.domain(domain), naming.label(label), *rest

    files = [(part, file) for part, patterns in layout.lists.items() for p in patterns for file in folder.glob(p)]
    if not files:
        return entries, None
    there = {key(entry.name) for entry in entries} | {key(name) for name in dropped}
    official: dict[tuple[str | None, ...], Part] = {}
    for part, file in files:
        for path, _ in list_lines(file):
            if key(path) not in there:
                return entries, f"{file} names {path}, which is not in {folder}"
            official[key(path)] = part
    return [replace(entry, part=official.get(key(entry.name), "train")) for entry in entries], None


def _by_spelling(names: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    return {folded(name): name for name in names} | {folded(alias): name for alias, name in aliases.items()}


def folded(name: str) -> str:
    """A name without what people write differently: case, spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]", "", name).casefold()
