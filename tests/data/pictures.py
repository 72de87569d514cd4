"""Pictures to make files of."""

import io
import struct

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


def tiff(width: int, height: int, bits: int, data: bytes) -> bytes:
    """A grey TIFF without compression, whose data may be shorter than its size says; 32 bits are floats."""
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 134, 277: 1, 278: height, 279: len(data)}
    tags[339] = 3 if bits == 32 else 1
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + data
