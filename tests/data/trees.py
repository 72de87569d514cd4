"""The paper's benchmarks on disk, in small."""

import struct
from pathlib import Path

import numpy as np

from medic.data import benchmark
from tests.data.pictures import picture

FOLDERS = ("pacs", "office-home", "vlcs", "terra-incognita", "domainnet", "digits-dg")
"""The benchmarks whose images are files in folders."""


def plant(root: Path) -> Path:
    """Write every benchmark of the paper's tables below a root: one image per class and domain, 90 digits of MNIST."""
    root.mkdir(exist_ok=True)
    picture(0, (8, 8)).save(root / "one.png")
    image = (root / "one.png").read_bytes()
    for name in FOLDERS:
        bench = benchmark(name)
        layout = next(layout for layout in bench.layouts if not layout.has_parts)
        for domain in bench.domains:
            for label in bench.classes or [f"class_{number:03}" for number in range(345)]:
                folder = root / layout.folders[0] / domain / label
                folder.mkdir(parents=True)
                (folder / "1.png").write_bytes(image)
    draws = np.random.default_rng(0)
    (root / "cmnist").mkdir()
    for part, count in (("train", 60), ("t10k", 30)):
        pixels, digits = draws.integers(1, 256, (count, 28, 28)), draws.integers(0, 10, count)
        for kind, values in (("images", pixels), ("labels", digits)):
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            file = root / "cmnist" / f"{part}-{kind}-idx{values.ndim}-ubyte"
            file.write_bytes(header + values.astype(np.uint8).tobytes())
    return root
