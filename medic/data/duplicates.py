"""Find images that occur twice: equal ones by their digests, resized or re-encoded copies by a perceptual hash.

Only fingerprints are kept: 42 bytes per image.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

SIZE = 64
"""The side in pixels at which images are compared."""
LIMIT = 24
"""The most bits, of 256, in which the hashes of two copies differ.

All 18 pairs of PACS that are not equal and differ in at most so many bits are copies. Drawings of the same object start
at 30 (docs/data.md).
"""
KEPT = 100_000
"""Pairs that are kept; further ones are counted."""
_FREQUENCIES = 16
_BANDS = 16
_CONTRAST = 1.0
"""The least standard deviation of an image in grey levels: the hash of a flat image would be noise."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue, as in JPEG, which keeps brightness better than colour."""
_COSINES = np.cos(np.pi / SIZE * np.outer(np.arange(_FREQUENCIES), np.arange(SIZE) + 0.5)).astype(np.float32)
_COSINES *= np.sqrt(np.where(np.arange(_FREQUENCIES) == 0, 1, 2) / SIZE).astype(np.float32)[:, None]
_DIAGONALS = np.add.outer(np.arange(_FREQUENCIES), np.arange(_FREQUENCIES)).ravel() % _BANDS
"""The band of each bit: a diagonal has one bit of every row and every column of frequencies."""
_ORDER = np.argsort(_DIAGONALS, kind="stable")


class Relation(IntEnum):
    """Two images that are the same, the most serious relation first."""

    DOMAINS = 0
    """They are in two domains: a model is tested on an image that it was trained on."""
    CLASSES = 1
    """They are in one domain and two classes: one of the labels is wrong."""
    WITHIN = 2
    """They are in one domain and one class: an image counts twice."""


@dataclass(frozen=True)
class Prints:
    """The fingerprints of N images: digests of pixels as uint64 (N,), and hashes as uint64 (N, 4)."""

    pixels: NDArray[np.uint64]
    hash: NDArray[np.uint64]
    readable: NDArray[np.bool_]
    textured: NDArray[np.bool_]
    """Whether an image has contrast; a flat one has no hash."""

    @classmethod
    def empty(cls, count: int) -> "Prints":
        """Return room for the fingerprints of images, none of which is readable yet."""
        return cls(
            np.zeros(count, np.uint64),
            np.zeros((count, 4), np.uint64),
            np.zeros(count, bool),
            np.zeros(count, bool),
        )


def perceptual_hash(pixels: NDArray[np.uint8]) -> NDArray[np.uint64] | None:
    """Return 256 bits of an image (3, 64, 64) as uint64 (4,): the signs of its 16 × 16 lowest frequencies.

    Bits are ordered by band. The hash of an image without contrast is None.
    """
    grey = np.tensordot(_LUMA, pixels.astype(np.float32), axes=1)
    grey -= grey.mean()
    if grey.std() < _CONTRAST:
        return None
    bits = (_COSINES @ grey @ _COSINES.T).ravel() > 0
    bits[0] = False  # the mean, which brightness alone changes
    return np.packbits(bits[_ORDER]).view(np.uint64)


@dataclass(frozen=True)
class Copies:
    """Images that are the same, the most serious relation first, and the number of all by relation."""

    groups: Sequence[tuple[Relation, Sequence[int]]]
    """Positions of images that are the same; at most `KEPT` entries."""
    counts: Counter[Relation]


def equal_images(prints: Prints, domain: NDArray[np.int64], label: NDArray[np.int64]) -> Copies:
    """Return groups of images with equal pixels at 64 × 64; those of equal files are among them."""
    order = np.flatnonzero(prints.readable)
    order = order[np.argsort(prints.pixels[order], kind="stable")]
    starts = np.flatnonzero(np.diff(prints.pixels[order], prepend=~prints.pixels[order[:1]]))
    groups = [group for group in np.split(order, starts[1:]) if len(group) > 1]
    related = [(_relation(domain[group], label[group]), group.tolist()) for group in groups]
    counts = Counter(relation for relation, _ in related)
    return Copies(sorted(related)[:KEPT], counts)


def _relation(domain: NDArray[np.int64], label: NDArray[np.int64]) -> Relation:
    if (domain != domain[0]).any():
        return Relation.DOMAINS
    return Relation.CLASSES if (label != label[0]).any() else Relation.WITHIN


def similar_images(prints: Prints, domain: NDArray[np.int64], label: NDArray[np.int64]) -> Copies:
    """Return pairs of images whose hashes differ in at most `LIMIT` bits; of equal images only the first counts."""
    usable = np.flatnonzero(prints.textured)
    usable = np.sort(usable[np.unique(prints.pixels[usable], return_index=True)[1]])
    counts: Counter[Relation] = Counter()
    kept = np.empty((0, 4), np.int64)  # relation, distance, two positions
    for pairs, distance in _close_pairs(prints.hash[usable]):
        pairs = usable[pairs]
        (d, e), (k, c) = domain[pairs].T, label[pairs].T
        relation = np.where(d != e, Relation.DOMAINS, np.where(k != c, Relation.CLASSES, Relation.WITHIN))
        counts.update(map(Relation, relation.tolist()))
        kept = np.concatenate([kept, np.column_stack([relation, distance, pairs])])
        if len(kept) > 2 * KEPT:
            kept = _first(kept)
    rows = _first(kept)
    return Copies([(Relation(row[0]), row[2:]) for row in rows.tolist()], counts)


def _first(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.lexsort(rows.T[::-1])][:KEPT]


def _close_pairs(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of rows (P, 2) of hashes (N, 4) within the limit, each pair once, and their distances (P,).

    A pair is compared if one of its 16 bands of 16 bits is equal, which holds for every pair of up to 15 different
    bits and for 99 % of those of 24. Memory is bounded by N, time by the pairs with an equal band.
    """
    bands = np.ascontiguousarray(hashes).view(np.uint16)
    for band in range(_BANDS):
        order = np.argsort(bands[:, band], kind="stable")
        keys = bands[order, band]
        active = np.arange(len(order) - 1)
        # Compare the rows that are `offset` apart in the sorted order, as long as they are in one bucket.
        for offset in range(1, len(order)):
            active = active[active + offset < len(order)]
            active = active[keys[active] == keys[active + offset]]
            if not len(active):
                break
            pairs = np.sort(np.column_stack([order[active], order[active + offset]]), axis=1)
            distance = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).sum(axis=1, dtype=np.int64)
            close = distance <= LIMIT
            pairs, distance = pairs[close], distance[close]
            new = ~(bands[pairs[:, 0], :band] == bands[pairs[:, 1], :band]).any(axis=1)  # not found by an earlier band
            if new.any():
                yield pairs[new], distance[new]
