"""Coloured MNIST (Arjovsky et al., 2019), built from MNIST's idx files with DomainBed's random draws."""

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.data.benchmarks.base import TFDS, Benchmark, Download, File
from medic.data.dataset import Generated
from medic.errors import MedicError
from medic.utils.files import check_root

DOMAINS = ("+90%", "+80%", "-90%")
CLASSES = ("0", "1")
"""Class 0 contains the digits 5 to 9, class 1 the digits 0 to 4. A quarter of the labels are then flipped."""
FLIPS = (0.1, 0.2, 0.9)
"""The probability, for each domain, that the colour disagrees with the label."""
LABEL_NOISE = 0.25

# SHA-256, published by tensorflow/datasets, url_checksums/mnist.txt.
_FILES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def build(root: Path, seed: int) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Return uint8 images of shape (N, 2, 28, 28), domains and labels of shape (N,), and N image names.

    All 70,000 digits are shuffled and divided among the three domains. The label is [digit < 5], flipped with
    probability 0.25. The colour is the label, flipped with the domain's probability. The colour selects one of the two
    channels; the other channel is black.
    """
    parts = zip(read_part(root, "train"), read_part(root, "t10k"), strict=True)
    pixels, digits = (torch.from_numpy(np.concatenate(both)) for both in parts)
    draws = torch.Generator().manual_seed(seed)  # the same draws in the same order as DomainBed
    order = torch.randperm(len(digits), generator=draws)
    images, domains, labels, names = [], [], [], []
    for domain, flip in enumerate(FLIPS):
        chosen = order[domain :: len(FLIPS)]
        label = digits[chosen] < 5
        label ^= torch.rand(len(chosen), generator=draws) < LABEL_NOISE
        colour = label ^ (torch.rand(len(chosen), generator=draws) < flip)
        channels = torch.stack((~colour, colour), dim=1)
        images.append(channels[:, :, None, None] * pixels[chosen, None])
        domains.append(torch.full((len(chosen),), domain))
        labels.append(label.long())
        names += [f"{DOMAINS[domain]}/{int(y)}/{index:05d}" for y, index in zip(label, chosen.tolist(), strict=True)]
    return torch.cat(images), torch.cat(domains), torch.cat(labels), names


def read_part(root: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images of shape (N, 28, 28) and labels of shape (N,) from one part of MNIST."""
    images, labels = read_idx(root, part, "images"), read_idx(root, part, "labels")
    if images.shape != (len(labels), 28, 28) or labels.ndim != 1:
        shapes = f"images of shape {images.shape} and labels of shape {labels.shape}"
        raise MedicError(f"root {root}: MNIST part {part!r} has {shapes}, which do not match: copy its files again")
    return images, labels


def read_idx(root: Path, part: str, kind: str) -> NDArray[np.uint8]:
    """Read one of MNIST's four idx files, compressed or not."""
    stem = f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    places = [root / folder / name for folder in ("", "cmnist", "MNIST/raw", "raw") for name in (stem, f"{stem}.gz")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise MedicError(f"root {root} is missing {stem} or {stem}.gz: copy MNIST's four idx files there")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        axes = data[3]
        shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise MedicError(f"{path} is truncated or not an idx file: {error}") from error


def _open(bench: Benchmark, root: Path | None, seed: int) -> Generated:
    root = bench.require_root(root)
    check_root(root, bench.root_hint)
    return Generated(bench.name, bench.domains, bench.classes, partial(build, root, seed))


def _mnist(base: str) -> tuple[File, ...]:
    return tuple(File(f"{base}/{name}.gz", checksum=f"sha256:{digest}") for name, digest in _FILES.items())


BENCHMARK = Benchmark(
    name="cmnist",
    description="MNIST digits 0-4 versus 5-9, in misleading colours; built from MNIST's idx files",
    reader=_open,
    domains=DOMAINS,
    classes=CLASSES,
    image_size=28,
    channels=2,
    backbone="mnist-cnn",
    augment="none",
    lr=4e-3,
    images=70_000,
    seeded=True,
    domainbed="ColoredMNIST",
    download=Download(
        mirrors={
            "pytorch/vision, torchvision/datasets/mnist.py": _mnist("https://ossci-datasets.s3.amazonaws.com/mnist"),
            f"{TFDS}, image_classification/mnist.py": _mnist("https://storage.googleapis.com/cvdf-datasets/mnist"),
            "pytorch/vision, torchvision/datasets/mnist.py, second mirror": _mnist("http://yann.lecun.com/exdb/mnist"),
        },
        page="https://github.com/cvdfoundation/mnist",
        contents=f"MNIST's four files, unpacked: {', '.join(_FILES)}",
        markers=(tuple(_FILES),),
    ),
)
