"""What a folder holds of a benchmark, against what it should hold."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from medic.data.catalog import Benchmark, locate, needs_root
from medic.data.dataset import Listed, Storage
from medic.data.layouts import Found
from medic.data.listing import ImageList, cell_counts
from medic.data.store import Contents, content_hash, distinct, read_images


@dataclass(frozen=True)
class Check:
    """What was found: where and how it lies, images per domain and class, and everything that is not as expected."""

    place: str
    counts: dict[str, dict[str, int]]
    differences: tuple[str, ...]
    """Where the counts are not the published ones."""
    extra: tuple[str, ...]
    bad: tuple[str, ...]
    duplicates: tuple[tuple[str, ...], ...]
    """Images of one domain with the same contents."""
    hash: str
    """The fingerprint that a run records."""

    @property
    def fine(self) -> bool:
        """Whether a run can start and has the published images."""
        return not (self.differences or self.bad)


def check(bench: Benchmark, root: Path | None) -> Check:
    """Read every image of a benchmark, or of one's own, and compare."""
    if bench.naming is not None:
        found = locate(bench, needs_root(bench, root))
        return _check_files(bench, found.listing, f"{found.layout.name} in {found.folder}", found)
    opened, place = bench.open(bench, root, 0), bench.name if root is None else f"{bench.name} in {root}"
    if isinstance(opened, Listed):
        return _check_files(bench, opened.listing, place, None)
    dataset = opened.load(Storage(bench.image_size or 32))
    counts = cell_counts(dataset.domains, dataset.classes, dataset.domain, dataset.label)
    return Check(place, counts, tuple(_differences(bench, counts)), (), (), (), dataset.hash)


def _check_files(bench: Benchmark, listing: ImageList, place: str, found: Found | None) -> Check:
    contents = read_images(listing, 32)
    kept = distinct(listing, contents) if bench.unique else contents.readable
    counts = listing.counts()
    published = {domain: dict(labels) for domain, labels in counts.items()}
    for entry in found.dropped if found else ():  # they are in the published counts
        published[entry.domain][entry.label] += 1
    notes = [] if found is None else [*found.extra, *(f"{entry.name}, known to be damaged" for entry in found.dropped)]
    return Check(
        place,
        counts,
        tuple(_differences(bench, published)),
        tuple(notes),
        contents.bad,
        _duplicates(listing, contents),
        content_hash(listing, kept, contents),
    )


def _differences(bench: Benchmark, counts: dict[str, dict[str, int]]) -> list[str]:
    lines = []
    for domain, expected in bench.counts.items():
        if len(expected) == 1:
            there = sum(counts[domain].values())
            lines += [f"{domain}: {there} images instead of {expected[0]}"] if there != expected[0] else []
            continue
        for label, number in zip(bench.classes, expected, strict=True):
            there = counts[domain][label]
            lines += [f"{domain}/{label}: {there} images instead of {number}"] if there != number else []
    there = sum(sum(labels.values()) for labels in counts.values())
    if bench.images is not None and there != bench.images:
        lines.append(f"{there} images instead of {bench.images}")
    return lines


def _duplicates(listing: ImageList, contents: Contents) -> tuple[tuple[str, ...], ...]:
    same: dict[tuple[int, bytes], list[str]] = defaultdict(list)
    for row in contents.readable:
        same[int(listing.domain[row]), contents.digests[row]].append(listing.names[row])
    return tuple(tuple(names) for names in same.values() if len(names) > 1)
