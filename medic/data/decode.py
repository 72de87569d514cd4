"""Decode image files of any format that Pillow reads."""

import io
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from medic.errors import MedicError

# Pillow warns about damaged EXIF, large sizes and palettes, which `decode` checks itself. The filter is permanent
# because images are decoded in threads, which share the filters.
warnings.filterwarnings("ignore", module=r"PIL\.")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**27)
"""Pillow refuses larger images: decoding one would take half a gigabyte."""


class BadImage(MedicError):
    """A file that cannot be read as an image; the message names the file."""


def read_file(path: str) -> bytes:
    """Return the bytes of an image file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror}") from error


def decode(data: bytes, size: int, name: str) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode an image, upright and in RGB, and resize it to a square as the benchmarks do.

    Returns the pixels (3, size, size), and the height and width before resizing. Channels of 16 bits keep their upper
    eight; CMYK, palettes and grey become RGB; transparent pixels keep the stored colour, as in torchvision.
    """
    if not data:
        raise BadImage(f"{name} is empty")
    try:
        with Image.open(io.BytesIO(data)) as image:
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise BadImage(f"{name} is not an image") from None
    except Image.DecompressionBombError:
        raise BadImage(f"{name} has more than {MAX_PIXELS // 10**6} million pixels: shrink it") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise BadImage(f"{name} is damaged: {error}") from None
    frame = (rgb.height, rgb.width)
    if rgb.size != (size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), frame


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which `convert` would clip at 255 instead of scaling
        values = np.asarray(image).astype(np.int64)
        scaled = values >> 8 if values.max(initial=0) > 255 else values
        image = Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    return image.convert("RGB")
