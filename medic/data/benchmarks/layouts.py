"""Find a benchmark's images on disk, in any of its supported layouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from medic.data.benchmarks.base import Benchmark, Layout
from medic.data.dataset import Part
from medic.data.listing import ImageFile, ImageList, list_lines, walk
from medic.errors import MedicError
from medic.utils.files import check_root

PARTS: Mapping[str, Part] = {"train": "train", "full": "train", "val": "val", "crossval": "val", "test": "test"}
"""Maps the names of folders between the domain and class folders to official splits."""


def read_layouts(bench: Benchmark, root: Path | None, seed: int) -> ImageList:
    """List a benchmark's images below a root, or raise an error that says what the root contains instead."""
    root = bench.require_root(root)
    check_root(root, bench.root_hint)
    place = _find(bench, root)
    if place is not None:
        return _read(bench, *place)
    from medic.data.benchmarks import BENCHMARKS  # imports this module

    for other in BENCHMARKS.values():
        if other is not bench and other.layouts and _find(other, root):
            raise MedicError(f"root {root} contains {other.name}, not {bench.name}: use --dataset {other.name}")
    missing = list(bench.domains)
    for _, folder in _candidates(bench, root):
        present = {bench.domain_of(path.name) for path in folder.iterdir()}
        missing = min(missing, [domain for domain in bench.domains if domain not in present], key=len)
    if not missing:
        raise MedicError(
            f"root {root} contains the domains of {bench.name}, but not in a supported layout: see docs/data.md"
        )
    raise MedicError(
        f"root {root} does not contain all domains of {bench.name}: {', '.join(missing)} not found{bench.fetch_hint}"
    )


def _candidates(bench: Benchmark, root: Path) -> Iterator[tuple[Layout, Path]]:
    """Yield each existing folder that may contain the domains, with its layout."""
    for layout in bench.layouts:
        for folder in ("", bench.name, *layout.folders):
            if (root / folder).is_dir():
                yield layout, root / folder


def _find(bench: Benchmark, root: Path) -> tuple[Layout, Path] | None:
    """Return the first layout that contains all domains, with its folder."""
    divisible = any(layout.has_parts for layout in bench.layouts)  # DomainNet has a class called `train`
    for layout, folder in _candidates(bench, root):
        domains = [path for path in folder.iterdir() if path.is_dir() and bench.domain_of(path.name)]
        whole = {bench.domain_of(path.name) for path in domains} == set(bench.domains)
        if whole and (divisible and _has_parts(bench, domains)) == layout.has_parts:
            return layout, folder
    return None


def _has_parts(bench: Benchmark, domains: Sequence[Path]) -> bool:
    """Return whether the domain folders contain training or validation folders with classes in them."""
    parts = [path for domain in domains for path in domain.iterdir() if path.name in PARTS and path.is_dir()]
    return any(child.is_dir() and bench.class_of(child.name) for part in parts for child in part.iterdir())


def _read(bench: Benchmark, layout: Layout, folder: Path) -> ImageList:
    entries: list[ImageFile] = []
    dropped: list[ImageFile] = []
    ignored = set()
    depth = 2 if layout.has_parts else 1
    for file, parts in walk(folder):
        domain = bench.domain_of(parts[0])
        label = bench.class_of(parts[depth]) if len(parts) > depth + 1 else None
        if domain is None or label is None:
            ignored.add(str(PurePosixPath(*parts[: depth + 1 if domain else 1])))
            continue
        if layout.has_parts and parts[1] == "full" and (folder / parts[0] / "train").is_dir():
            continue  # a second copy of the images in `train` and `crossval`
        name = "/".join(parts)
        entry = ImageFile(file, name, domain, label, part=PARTS.get(parts[1]) if layout.has_parts else None)
        (dropped if name in bench.dropped else entries).append(entry)
    if not entries:
        raise MedicError(f"{folder} contains the domains of {bench.name}, but no images of its classes")
    classes = bench.classes or tuple(sorted({entry.label for entry in entries}, key=str.casefold))
    entries, problem = _with_official_parts(bench, layout, folder, entries)
    return replace(
        ImageList.of(bench.name, entries, bench.domains, classes),
        parts_problem=problem,
        unique=bench.unique,
        location=f"{layout.name} in {folder}",
        ignored=tuple(sorted(ignored)),
        dropped=tuple(dropped),
    )


def _with_official_parts(
    bench: Benchmark, layout: Layout, folder: Path, entries: list[ImageFile]
) -> tuple[list[ImageFile], str | None]:
    """Mark the images that the official lists reserve for validation and testing. All others are for training.

    Classes come from the folders, not from the numbers in the lists. Lists that do not match the images are ignored,
    and the mismatch is returned as a message.
    """

    def key(path: str) -> tuple[str | None, ...]:
        domain, label, *rest = PurePosixPath(path).parts if path.count("/") > 1 else ("", "", path)
        return bench.domain_of(domain), bench.class_of(label), *rest

    files = [(part, file) for part, patterns in layout.lists.items() for p in patterns for file in folder.glob(p)]
    if not files:
        return entries, None
    known = {key(entry.name) for entry in entries} | {key(name) for name in bench.dropped}
    official: dict[tuple[str | None, ...], Part] = {}
    for part, file in files:
        for path, _ in list_lines(file):
            if key(path) not in known:
                return entries, f"{file} lists {path}, which is missing from {folder}"
            official[key(path)] = part
    return [replace(entry, part=official.get(key(entry.name), "train")) for entry in entries], None
