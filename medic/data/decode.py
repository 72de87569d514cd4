"""Decode image files in bounded memory. Unreadable files raise `BadImage` with a one-line message."""

import io
import os
import stat
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from medic.errors import MedicError, first_line

# Pillow warns about damaged EXIF, large sizes and palettes, which `decode` handles itself. The filter is permanent
# because images are decoded in threads, which share warning filters.
warnings.filterwarnings("ignore", module=r"PIL\.")

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Supported formats, regardless of suffix. Excludes formats such as PostScript, for which Pillow runs programs."""
MAX_BYTES = 2**29
"""Maximum size in bytes of a file and of its decoded pixels. Decoding may briefly use four times as much memory."""
MAX_PIXELS = MAX_BYTES // 4
"""Maximum height × width. Images are converted to RGB, for which Pillow uses 4 bytes per pixel."""
MAX_SIDE = 2**16
"""Maximum height and width. Resizing first creates an image with the old height and the new width."""
THREADS = min(8, os.cpu_count() or 1)
"""Number of decoding threads. More threads are slower, because part of the work holds the GIL."""
_BITS_PER_SAMPLE = 258  # TIFF tag


class BadImage(MedicError):
    """An image that cannot be read. The message names the file."""


def read_file(path: str) -> bytes:
    """Read a regular file of limited size. Pipes and devices raise an error, because they may never end."""
    try:
        status = Path(path).stat()
        regular, folder = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode)
        if regular and status.st_size <= MAX_BYTES:
            return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        raise BadImage(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    problem = "is a folder, not an image" if folder else "is not a regular file"
    if regular:
        problem = f"is larger than {MAX_BYTES >> 20} MiB: shrink it"
    raise BadImage(f"{path} {problem}")


def decode(data: bytes, size: int, name: str, limit: int = MAX_PIXELS) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode an image to upright RGB and resize it to a square.

    Images with more than `limit` pixels raise `BadImage`. 16-bit channels keep their upper eight bits, and floats in
    [0, 1] are scaled to 255. CMYK, palette and grey images are converted to RGB. Transparent pixels keep their stored
    colour, as in torchvision.

    Returns:
        Pixels of shape (3, size, size), and the image's height and width before resizing.
    """
    if not data:
        raise BadImage(f"{name} is empty")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return squared(image, size, name, limit)
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImage(f"{name} is not in a supported image format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        raise _too_large(name, limit) from None
    except Exception as error:  # Pillow raises many types for damaged files
        raise BadImage(f"{name} is damaged: {first_line(error)}") from error


def squared(image: Image.Image, size: int, name: str, limit: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Convert an open image in the same way as `decode`. Rotates `image` upright in place."""
    if image.width * image.height > limit or max(image.size) > MAX_SIDE:
        raise _too_large(name, limit)
    try:
        ImageOps.exif_transpose(image, in_place=True)
        rgb = _to_rgb(image, name)
        frame = (rgb.height, rgb.width)
        if rgb.size != (size, size):
            rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), frame
    except (BadImage, MemoryError):  # images within the limits need little memory, so this is a real shortage
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise BadImage(f"{name} is damaged: {first_line(error)}") from error


def _too_large(name: str, limit: int) -> BadImage:
    limits = f"{limit / 10**6:.3g} million pixels and {MAX_SIDE} per side"
    return BadImage(f"{name} is too large: shrink it to at most {limits}")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert an image to RGB. Scales 16-bit integers and floats, which Pillow's `convert` would clip at 255."""
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        floats = np.asarray(image)
        if not (floats.min() >= 0 and floats.max() <= 1):  # also true for NaN
            raise BadImage(f"{name} contains floats outside [0, 1]: rescale them, or save it with 8 bits per channel")
        image = Image.fromarray((floats * 255 + 0.5).astype(np.uint8))
    elif image.mode.startswith("I"):
        if image.mode == "I" and image.format != "PPM":  # Pillow scales PPM values to 16 bits
            raise BadImage(f"{name} contains signed or 32-bit integers: save it with 8 or 16 bits per channel")
        bits = max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,)))  # 12 in some TIFF files
        image = Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    return image.convert("RGB")
