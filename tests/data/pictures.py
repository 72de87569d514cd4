"""Pictures to make files of."""

import io

import numpy as np
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth colour picture."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **settings) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()
