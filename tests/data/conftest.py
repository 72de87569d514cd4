"""Image files of their own for the tests of the data, and a cache of their own."""

import gzip
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import picture


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path) -> Path:
    """Two domains, two classes, three images each, with awkward names."""
    count = itertools.count()
    for domain in ("fotos à la carte", "二番"):
        for label in ("a 'quoted' one", "b"):
            folder = tmp_path / "images" / domain / label
            folder.mkdir(parents=True)
            for name in ("1.png", "2 2.PNG", "x.webp"):
                picture(next(count)).save(folder / name)
    return tmp_path / "images"


@pytest.fixture
def idx(tmp_path) -> Path:
    """MNIST's four files, two of them compressed, with 90 digits of noise."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 60), ("t10k", 30)):
        images = rng.integers(1, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        data = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + images.tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
        data = struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(data)
    return folder
