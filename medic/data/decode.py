"""One image file → pixels, whatever a folder may hold."""

import io
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from medic.errors import MedicError

# Of damaged EXIF, large sizes and palettes: what matters is checked here. For good, not around each image, because
# images are decoded in threads, which share the filters.
warnings.filterwarnings("ignore", module=r"PIL\.")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**27)
"""An image of more pixels is refused by PIL: decoding it would take half a gigabyte."""


class BadImage(MedicError):
    """A file that cannot be read as an image; the message names it."""


class Decoded(NamedTuple):
    """An image squashed to a square: its pixels (3, size, size), and the height and width that it had."""

    pixels: NDArray[np.uint8]
    frame: tuple[int, int]


def decode(data: bytes, size: int, name: str) -> Decoded:
    """An encoded image, upright, in RGB, squashed to a square as the benchmarks do.

    Sixteen bits a channel keep their upper eight; CMYK, palettes and grey become RGB; transparent parts keep the colour
    that is stored below them, as every loader of the field has it.
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
    return Decoded(np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), frame)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which `convert` would clip at 255 instead of scaling
        values = np.asarray(image).astype(np.int64)
        scaled = values >> 8 if values.max(initial=0) > 255 else values
        image = Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    return image.convert("RGB")
