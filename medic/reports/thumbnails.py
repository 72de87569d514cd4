"""Thumbnails of images by name. Only files under the root passed by the user are read."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from medic.data import Benchmark, ImageList, Storage
from medic.data.decode import BadImage, decode, read_file

SIZE = 128
"""Longer side of a thumbnail, in pixels."""


def thumbnails(bench: Benchmark, root: Path | None, seed: int, names: Sequence[str]) -> list[str | None]:
    """Return the named images as data URLs, with None for images that are missing or unreadable.

    `root` is required unless the benchmark is built in.
    """
    opened = bench.open(root, seed)
    wanted = set(names)
    urls: dict[str, str] = {}
    if isinstance(opened, ImageList):
        for name, file in zip(opened.names, opened.files, strict=True):
            if name in wanted:
                try:
                    urls[name] = _data_url(*decode(read_file(file), SIZE, name))
                except BadImage:
                    continue
    else:
        dataset = opened.load(Storage(bench.image_size or SIZE))
        places = {name: place for place, name in enumerate(dataset.paths) if name in wanted}
        pixels = dataset.images.gather(torch.tensor(list(places.values()), dtype=torch.long), torch.device("cpu"))
        urls = {name: _data_url(image.numpy(), (1, 1)) for name, image in zip(places, pixels, strict=True)}
    return [urls.get(name) for name in names]


def _data_url(pixels: NDArray[np.uint8], frame: tuple[int, int]) -> str:
    """Return pixels of shape (C, H, W) as a data URL, with the aspect ratio of `frame` (height, width)."""
    channels, height, width = pixels.shape
    rgb = np.zeros((height, width, 3), dtype=np.uint8)
    rgb[..., : min(channels, 3)] = pixels[:3].transpose(1, 2, 0)
    image = Image.fromarray(rgb if channels > 1 else np.repeat(rgb[..., :1], 3, axis=2))
    size = (max(1, round(SIZE * frame[1] / max(frame))), max(1, round(SIZE * frame[0] / max(frame))))
    if image.size != size:
        image = image.resize(size, Image.Resampling.NEAREST if width < SIZE else Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
