"""Coloured MNIST, built from MNIST's idx files as DomainBed builds it, seeds included."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.errors import MedicError

DOMAINS = ("+90%", "+80%", "-90%")
CLASSES = ("0", "1")
"""Digits 5 to 9, and 0 to 4, before a quarter of the labels is flipped."""
FLIPS = (0.1, 0.2, 0.9)
"""How often the colour disagrees with the label in each domain."""
LABEL_NOISE = 0.25
PARTS = ("train", "t10k")


def build(root: Path, seed: int) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Images (N, 2, 28, 28) uint8, domain (N,), label (N,) and the names of the digits they come from.

    All 70,000 digits are shuffled and dealt over the three domains. A label is [digit < 5], flipped with probability
    0.25; a colour is the label, flipped with the domain's probability, and the other colour's channel is black.
    """
    pixels, digits = (np.concatenate(parts) for parts in zip(*(read_part(root, part) for part in PARTS), strict=True))
    draws = torch.Generator().manual_seed(seed)  # the draws of a global generator with this seed, in the same order
    order = torch.randperm(len(digits), generator=draws)
    images, domains, labels, names = [], [], [], []
    for domain, flip in enumerate(FLIPS):
        chosen = order[domain :: len(FLIPS)]
        label = torch.from_numpy(digits)[chosen] < 5
        label ^= torch.rand(len(chosen), generator=draws) < LABEL_NOISE
        colour = label ^ (torch.rand(len(chosen), generator=draws) < flip)
        grey = torch.from_numpy(pixels)[chosen]
        images.append(
            torch.stack([torch.where(colour[:, None, None], 0, grey), torch.where(colour[:, None, None], grey, 0)], 1)
        )
        domains.append(torch.full((len(chosen),), domain))
        labels.append(label.long())
        names += [f"{DOMAINS[domain]}/{int(y)}/{index:05d}" for y, index in zip(label, chosen.tolist(), strict=True)]
    return torch.cat(images), torch.cat(domains), torch.cat(labels), names


def read_part(root: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The images (N, 28, 28) and labels (N,) of one part of MNIST."""
    images, labels = read_idx(root, part, "images"), read_idx(root, part, "labels")
    if images.shape != (len(labels), 28, 28) or labels.ndim != 1:
        shapes = f"images of the shape {images.shape} and labels of {labels.shape}"
        raise MedicError(f"root {root} has {shapes} for MNIST's part {part!r}: they do not belong together")
    return images, labels


def read_idx(root: Path, part: str, kind: str) -> NDArray[np.uint8]:
    """One of MNIST's four files, compressed or not: images (N, 28, 28) or labels (N,)."""
    stem = f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    places = [root / folder / name for folder in ("", "MNIST/raw", "raw") for name in (stem, f"{stem}.gz")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise MedicError(f"root {root} has no {stem} or {stem}.gz: put MNIST's four idx files there")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        axes = data[3]
        shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise MedicError(f"{path} is truncated or not an idx file: {error}") from error
