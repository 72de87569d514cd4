"""Compare the images of a benchmark on disk with the published counts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medic.data.benchmarks.base import Benchmark
from medic.data.listing import ImageList, cell_counts
from medic.data.store import FileContent, Storage, make_index, read_files

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Check:
    """The result of checking a benchmark: its location, its counts by domain and class, and all deviations."""

    place: str
    counts: Counts
    differences: Sequence[str]
    """Deviations from the published counts."""
    hash: str
    """The fingerprint that a run records."""
    extra: Sequence[str] = ()
    """Folders and images that are left out."""
    bad: Sequence[str] = ()
    """A message for each unreadable file."""
    duplicates: Sequence[Sequence[str]] = ()
    """Images of one domain with equal contents."""

    @property
    def fine(self) -> bool:
        """Whether a run can start and has the published images."""
        return not (self.differences or self.bad)


def check(bench: Benchmark, root: Path | None) -> Check:
    """Read every image of a benchmark, or of your own, and compare the counts."""
    opened, place = bench.open(root), bench.name if root is None else f"{bench.name} in {root}"
    if not isinstance(opened, ImageList):
        dataset = opened.load(Storage(bench.image_size or 32))
        counts = cell_counts(dataset)
        return Check(place, counts, _differences(bench, counts), dataset.hash)
    contents = [content._replace(pixels=None) for content in read_files(opened, 32)]
    index = make_index(opened, 32, contents)
    published = opened.counts()
    for entry in opened.dropped:  # the published counts include them
        published[entry.domain][entry.label] += 1
    return Check(
        opened.location or place,
        opened.counts(),
        _differences(bench, published),
        index.hash,
        [*opened.ignored, *(f"{entry.name}, known to be damaged" for entry in opened.dropped)],
        index.bad,
        _duplicates(opened, contents),
    )


def _differences(bench: Benchmark, counts: Counts) -> list[str]:
    """Return a line for each count that is not the published one."""
    pairs = []
    for domain, expected in bench.counts.items():
        if len(expected) == 1:
            pairs.append((f"{domain}: ", sum(counts[domain].values()), expected[0]))
        else:
            labels = zip(bench.classes, expected, strict=True)
            pairs += [(f"{domain}/{label}: ", counts[domain][label], number) for label, number in labels]
    if bench.images is not None:
        pairs.append(("", sum(sum(labels.values()) for labels in counts.values()), bench.images))
    return [f"{where}{found} images instead of {number}" for where, found, number in pairs if found != number]


def _duplicates(listing: ImageList, contents: Sequence[FileContent]) -> list[list[str]]:
    same: dict[tuple[int, bytes], list[str]] = defaultdict(list)
    for name, domain, content in zip(listing.names, listing.domain.tolist(), contents, strict=True):
        if content.problem is None:
            same[domain, content.digest].append(name)
    return [names for names in same.values() if len(names) > 1]
