"""Find duplicate images: equal images by digest, resized or re-encoded copies by perceptual hash.

Only fingerprints are kept in memory: 42 bytes per image.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

SIZE = 64
"""Side length in pixels of the images that are compared."""
LIMIT = 24
"""Maximum number of bits, out of 256, in which the hashes of two copies differ.

In PACS, all 18 unequal pairs within this limit are copies. Different drawings of the same object differ in at least 30
bits (docs/data.md).
"""
KEPT = 100_000
"""Maximum number of pairs that are kept; further pairs are only counted."""
_FREQUENCIES = 16
_BANDS = 16
_CONTRAST = 1.0
"""Minimum standard deviation in grey levels. The hash of a flatter image would be noise."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in brightness, which JPEG preserves better than colour."""
_COSINES = np.cos(np.pi / SIZE * np.outer(np.arange(_FREQUENCIES), np.arange(SIZE) + 0.5)).astype(np.float32)
_COSINES *= np.sqrt(np.where(np.arange(_FREQUENCIES) == 0, 1, 2) / SIZE).astype(np.float32)[:, None]
_DIAGONALS = np.add.outer(np.arange(_FREQUENCIES), np.arange(_FREQUENCIES)).ravel() % _BANDS
"""The band of each bit. Each band contains one bit from every row and every column of frequencies."""
_ORDER = np.argsort(_DIAGONALS, kind="stable")


class Relation(IntEnum):
    """The relation between two copies of an image, most serious first."""

    DOMAINS = 0
    """In two domains: a model may be tested on an image it was trained on."""
    CLASSES = 1
    """In one domain but two classes: one of the labels is wrong."""
    WITHIN = 2
    """In one domain and class: the image is counted twice."""


@dataclass(frozen=True)
class Prints:
    """Fingerprints of N images: uint64 pixel digests of shape (N,) and uint64 perceptual hashes of shape (N, 4)."""

    pixels: NDArray[np.uint64]
    hash: NDArray[np.uint64]
    readable: NDArray[np.bool_]
    textured: NDArray[np.bool_]
    """Whether an image has enough contrast for a perceptual hash."""

    @classmethod
    def empty(cls, count: int) -> "Prints":
        """Allocate fingerprints for `count` images, all marked as unreadable."""
        return cls(
            np.zeros(count, np.uint64),
            np.zeros((count, 4), np.uint64),
            np.zeros(count, bool),
            np.zeros(count, bool),
        )


def perceptual_hash(pixels: NDArray[np.uint8]) -> NDArray[np.uint64] | None:
    """Return the perceptual hash of an image of shape (3, 64, 64), or None if it has too little contrast.

    The 256 bits, as uint64 of shape (4,), are the signs of the 16 × 16 lowest frequencies, ordered by band.
    """
    grey = np.tensordot(_LUMA, pixels.astype(np.float32), axes=1)
    grey -= grey.mean()
    if grey.std() < _CONTRAST:
        return None
    bits = (_COSINES @ grey @ _COSINES.T).ravel() > 0
    bits[0] = False  # ignore the mean, which depends on brightness alone
    return np.packbits(bits[_ORDER]).view(np.uint64)


@dataclass(frozen=True)
class Copies:
    """Duplicate images, most serious relation first, and the total number of duplicates by relation."""

    groups: Sequence[tuple[Relation, Sequence[int]]]
    """Indices of images that are copies of each other; at most `KEPT` groups."""
    counts: Counter[Relation]


def equal_images(prints: Prints, domain: NDArray[np.int64], label: NDArray[np.int64]) -> Copies:
    """Return groups of images whose pixels are equal at 64 × 64, which includes identical files."""
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
    """Return pairs of images whose hashes differ in at most `LIMIT` bits. Equal images are treated as one image."""
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
    """Yield index pairs of shape (P, 2) within the distance limit, each pair once, with distances of shape (P,).

    Two hashes are compared only if at least one of their 16 bands of 16 bits is equal. This holds for all pairs that
    differ in at most 15 bits, and for 99% of pairs that differ in 24 bits. Memory grows with the number of hashes, time
    with the number of pairs that share a band.
    """
    bands = np.ascontiguousarray(hashes).view(np.uint16)
    for band in range(_BANDS):
        order = np.argsort(bands[:, band], kind="stable")
        keys = bands[order, band]
        active = np.arange(len(order) - 1)
        # Compare rows that are `offset` apart in the sorted order, while they are in the same bucket.
        for offset in range(1, len(order)):
            active = active[active + offset < len(order)]
            active = active[keys[active] == keys[active + offset]]
            if not len(active):
                break
            pairs = np.sort(np.column_stack([order[active], order[active + offset]]), axis=1)
            distance = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).sum(axis=1, dtype=np.int64)
            close = distance <= LIMIT
            pairs, distance = pairs[close], distance[close]
            new = ~(bands[pairs[:, 0], :band] == bands[pairs[:, 1], :band]).any(axis=1)  # no earlier band found it
            if new.any():
                yield pairs[new], distance[new]
