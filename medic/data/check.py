"""What a folder holds of a benchmark, against what it should hold."""

import hashlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from medic.data.catalog import Benchmark, locate, needs_root
from medic.data.dataset import Listed, Storage
from medic.data.decode import BadImage, decode
from medic.data.layouts import Found
from medic.data.listing import ImageList, cell_counts
from medic.data.store import content_hash, distinct, read_file


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
    contents, bad = _read_all(listing)
    kept = [row for row, content in enumerate(contents) if content]
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
        bad,
        _duplicates(listing, kept, contents),
        content_hash(listing, distinct(listing, kept, contents) if bench.unique else kept, contents),
    )


def _read_all(listing: ImageList) -> tuple[list[bytes], tuple[str, ...]]:
    """The digest of every image, empty where it cannot be read, and what is wrong with those."""

    def read(row: int) -> tuple[bytes, str | None]:
        try:
            data = read_file(listing.files[row])
            decode(data, 32, listing.files[row])
        except BadImage as error:
            return b"", str(error)
        return hashlib.sha256(data).digest(), None

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(read, range(len(listing))))
    return [digest for digest, _ in found], tuple(message for _, message in found if message)


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


def _duplicates(listing: ImageList, kept: list[int], contents: list[bytes]) -> tuple[tuple[str, ...], ...]:
    same: dict[tuple[int, bytes], list[str]] = defaultdict(list)
    for row in kept:
        same[int(listing.domain[row]), contents[row]].append(listing.names[row])
    return tuple(tuple(names) for names in same.values() if len(names) > 1)
