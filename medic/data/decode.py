"""Decode image files, in bounded memory: every file that cannot be decoded is a `BadImage` with one line."""

import io
import os
import stat
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from medic.errors import MedicError, first_line

# Pillow warns about damaged EXIF, large sizes and palettes, which `decode` checks itself. The filter is permanent
# because images are decoded in threads, which share the filters.
warnings.filterwarnings("ignore", module=r"PIL\.")

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""The formats that are tried, whatever the suffix. Some of Pillow's others start programs: PostScript is not listed."""
MAX_BYTES = 2**29
"""The limit of a file, and of its decoded pixels. Decoding may take four times as much memory for a moment."""
MAX_PIXELS = MAX_BYTES // 4
"""The limit of height × width: every image becomes RGB, which Pillow keeps in 4 bytes per pixel."""
MAX_SIDE = 2**16
"""The limit of height and width: resizing makes an image of the old height and the new width first."""
THREADS = min(8, os.cpu_count() or 1)
"""Threads that decode. More hinder each other, since part of the work holds Python's lock (docs/performance.md)."""
_BITS_PER_SAMPLE = 258  # a tag of TIFF


class BadImage(MedicError):
    """A file that cannot be read as an image; the message names the file."""


def read_file(path: str) -> bytes:
    """Return the bytes of an image or a list of images, a regular file: a pipe or a device may have no end."""
    try:
        status = Path(path).stat()
        regular = stat.S_ISREG(status.st_mode)
        if regular and status.st_size <= MAX_BYTES:
            return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError is a path with a NUL
        raise BadImage(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    problem = f"has more than {MAX_BYTES >> 20} MiB: shrink it" if regular else "is not a regular file"
    raise BadImage(f"{path} {problem}")


def decode(data: bytes, size: int, name: str, limit: int = MAX_PIXELS) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode an image, upright and in RGB, and resize it to a square as the benchmarks do.

    Returns the pixels (3, size, size), and the height and width before resizing; more than `limit` pixels are refused.
    Channels of 16 bits keep their upper eight, and floats in [0, 1] are multiplied by 255, whatever values an image
    has. CMYK, palettes and grey become RGB; transparent pixels keep the stored colour, as in torchvision.
    """
    if not data:
        raise BadImage(f"{name} is empty")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return squared(image, size, name, limit)
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImage(f"{name} is not an image of a format that is read: {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise _too_large(name, limit) from None
    except Exception as error:  # Pillow raises any type for a damaged file
        raise BadImage(f"{name} is damaged: {first_line(error)}") from error


def squared(image: Image.Image, size: int, name: str, limit: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return an image as `decode` does, and leave the image itself upright."""
    if image.width * image.height > limit or max(image.size) > MAX_SIDE:
        raise _too_large(name, limit)
    try:
        ImageOps.exif_transpose(image, in_place=True)
        rgb = _to_rgb(image, name)
        frame = (rgb.height, rgb.width)
        if rgb.size != (size, size):
            rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), frame
    except (BadImage, MemoryError):  # no image that is small enough asks for much memory, so there is too little
        raise
    except Exception as error:  # Pillow raises any type for a damaged file
        raise BadImage(f"{name} is damaged: {first_line(error)}") from error


def _too_large(name: str, limit: int) -> BadImage:
    limits = f"{limit / 10**6:.3g} million pixels, or {MAX_SIDE} on a side"
    return BadImage(f"{name} has more than {limits}: shrink it")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image in RGB; `convert` would clip integers of 16 bits and floats at 255 instead of scaling them."""
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        floats = np.asarray(image)
        if not (floats.min() >= 0 and floats.max() <= 1):  # also if one is NaN
            raise BadImage(f"{name} has floats outside [0, 1]: rescale them, or save it with 8 bits")
        image = Image.fromarray((floats * 255 + 0.5).astype(np.uint8))
    elif image.mode.startswith("I"):
        if image.mode == "I" and image.format != "PPM":  # Pillow scales those of PPM to 16 bits
            raise BadImage(f"{name} has signed or 32-bit integers: save it with 8 or 16 bits")
        bits = max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,)))  # a TIFF may have 12
        image = Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    return image.convert("RGB")
