"""Check a dataset on disk for wrong image counts, unreadable files and duplicate images."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from medic.data.benchmarks.base import Benchmark
from medic.data.dataset import Dataset
from medic.data.duplicates import SIZE, Copies, Prints, Relation, equal_images, perceptual_hash, similar_images
from medic.data.listing import ImageList, cell_counts
from medic.data.store import FileContent, Storage, make_index, read_files
from medic.utils.files import IMAGE_SUFFIXES

Counts = dict[str, dict[str, int]]


class Place(NamedTuple):
    """An image with its domain and class."""

    name: str
    domain: str
    label: str

    def __str__(self) -> str:
        """Return the name, followed by domain and class unless the name contains them."""
        known = f"/{self.domain}/{self.label}/" in f"/{self.name}"
        return self.name if known else f"{self.name} ({self.domain}, {self.label})"


class Copy(NamedTuple):
    """A group of identical or similar images."""

    relation: Relation
    images: tuple[Place, ...]


@dataclass(frozen=True)
class Found:
    """Duplicate images, most serious first, and the total number of duplicates by relation."""

    copies: Sequence[Copy] = ()
    counts: Mapping[Relation, int] = field(default_factory=Counter)

    def of(self, relation: Relation) -> list[Copy]:
        """Return the duplicates with a given relation."""
        return [copy for copy in self.copies if copy.relation is relation]


@dataclass(frozen=True)
class Check:
    """The result of checking a dataset: its location, image counts by domain and class, and all problems."""

    place: str
    counts: Counts
    differences: Sequence[str]
    """Deviations from the published counts."""
    hash: str
    """Fingerprint of the dataset, as recorded by runs."""
    images: Dataset | ImageList
    extra: Sequence[str] = ()
    """Folders and images that are not used."""
    bad: Sequence[str] = ()
    """Error messages for unreadable files."""
    equal: Found | None = None
    """Images with equal pixels; None for generated benchmarks."""
    similar: Found | None = None
    """Image pairs that are probably resized, re-encoded or recoloured copies of each other."""

    @property
    def fine(self) -> bool:
        """Whether all files are readable, counts match, and no image occurs in two domains or two classes."""
        twice = self.equal is not None and any(self.equal.counts[one] for one in (Relation.DOMAINS, Relation.CLASSES))
        return not (self.differences or self.bad or twice)

    def places(self) -> dict[str, Place]:
        """Return all images by name."""
        images = self.images
        names = images.names if isinstance(images, ImageList) else images.paths
        own = zip(names, images.domain.tolist(), images.label.tolist(), strict=True)
        return {name: Place(name, images.domains[domain], images.classes[label]) for name, domain, label in own}


def other_files(root: Path) -> Counter[str]:
    """Count the files below a folder that are not images, by suffix (`.heic`, `.txt`, …). Skips hidden files."""
    counts: Counter[str] = Counter()
    for _, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name[0] != "."]
        suffixes = (Path(name).suffix.lower() or "without a suffix" for name in files if name[0] != ".")
        counts.update(suffix for suffix in suffixes if suffix not in IMAGE_SUFFIXES)
    return counts


def check(bench: Benchmark, root: Path | None) -> Check:
    """Read every image of a dataset, compare image counts with the published counts, and find duplicates."""
    opened, place = bench.open(root), bench.name if root is None else f"{bench.name} in {root}"
    if not isinstance(opened, ImageList):
        dataset = opened.load(Storage(bench.image_size or 32))
        counts = cell_counts(dataset)
        return Check(place, counts, _differences(bench, counts), dataset.hash, dataset)
    prints = Prints.empty(len(opened))
    index = make_index(opened, SIZE, _recorded(read_files(opened, SIZE), prints))
    labels = opened.domain.numpy(), opened.label.numpy()
    published = opened.counts()
    for entry in opened.dropped:  # published counts include dropped images
        published[entry.domain][entry.label] += 1
    return Check(
        opened.location or place,
        opened.counts(),
        _differences(bench, published),
        index.hash,
        opened,
        [*opened.ignored, *(f"{entry.name}, known to be damaged" for entry in opened.dropped)],
        index.bad,
        _with_places(opened, equal_images(prints, *labels)),
        _with_places(opened, similar_images(prints, *labels)),
    )


def _differences(bench: Benchmark, counts: Counts) -> list[str]:
    """Return one line for each count that differs from the published count."""
    pairs = []
    for domain, expected in bench.counts.items():
        if len(expected) == 1:
            pairs.append((f"{domain}: ", sum(counts[domain].values()), expected[0]))
        else:
            labels = zip(bench.classes, expected, strict=True)
            pairs += [(f"{domain}/{label}: ", counts[domain][label], number) for label, number in labels]
    if bench.images is not None:
        pairs.append(("", sum(sum(labels.values()) for labels in counts.values()), bench.images))
    return [f"{where}{count} images instead of {number}" for where, count, number in pairs if count != number]


def _recorded(contents: Iterable[FileContent], prints: Prints) -> Iterator[FileContent]:
    """Yield file contents without pixels, and store the fingerprints of the pixels in `prints`."""
    for row, content in enumerate(contents):
        if content.pixels is not None:
            pixels = hashlib.sha256(repr(content.frame).encode() + content.pixels.tobytes()).digest()
            prints.pixels[row], prints.readable[row] = int.from_bytes(pixels[:8]), True
            bits = perceptual_hash(content.pixels)
            if bits is not None:
                prints.hash[row], prints.textured[row] = bits, True
        yield content._replace(pixels=None)


def _with_places(listing: ImageList, copies: Copies) -> Found:
    domain, label = listing.domain.tolist(), listing.label.tolist()
    located = []
    for relation, rows in copies.groups:
        places = tuple(
            Place(listing.names[row], listing.domains[domain[row]], listing.classes[label[row]]) for row in rows
        )
        located.append(Copy(relation, places))
    return Found(located, copies.counts)
