"""Convert files, bytes, PIL images, arrays and tensors to pixels of one size."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from medic.data.decode import MAX_PIXELS, THREADS, BadImage, decode, read_file, squared
from medic.errors import MedicError, first_line

AnyImage: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.generic] | Tensor
"""An image: a path, a file's bytes, a PIL image, an array of shape (H, W) or (H, W, 3), or a (3, H, W) tensor.

Arrays and tensors are uint8, or floats in [0, 1].
"""
Pixels: TypeAlias = NDArray[np.uint8]
T = TypeVar("T")
U = TypeVar("U")


def to_pixels(image: AnyImage, size: int, limit: int = MAX_PIXELS) -> Pixels:
    """Convert an image to pixels of shape (3, size, size), with the same preprocessing as in training."""
    return to_square(image, size, limit)[0]


def to_square(image: AnyImage, size: int, limit: int = MAX_PIXELS) -> tuple[Pixels, tuple[int, int]]:
    """Convert an image to pixels of shape (3, size, size). Also returns its original height and width."""
    if isinstance(image, str | Path):
        return decode(read_file(str(image)), size, str(image), limit)
    if isinstance(image, bytes):
        return decode(image, size, "the image", limit)
    return squared(_copied(image) if isinstance(image, Image.Image) else _to_pil(image), size, "the image", limit)


def each_image(images: AnyImage | Iterable[AnyImage]) -> Iterable[AnyImage]:
    """Return an iterable of images from a single image, a batch of shape (N, …) or a sequence."""
    if isinstance(images, np.ndarray | Tensor):
        return images if images.ndim == 4 else [images]
    if isinstance(images, str | Path | bytes | Image.Image) or not isinstance(images, Iterable):
        return [images]  # an invalid image raises the same error alone as in a list
    return images


def _copied(image: Image.Image) -> Image.Image:
    """Copy a PIL image. Copying also reads the image's file, if that has not happened yet."""
    try:
        return image.copy()
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise BadImage(f"the image is damaged: {first_line(error)}") from error


def _to_pil(image: object) -> Image.Image:
    """Convert an array or a tensor to a PIL image."""
    if not isinstance(image, np.ndarray | Tensor):
        kinds = "a path, bytes, a PIL image, an array of shape (H, W, 3) or a tensor of shape (3, H, W)"
        raise MedicError(f"image must be {kinds}, got {type(image).__name__}")
    values: NDArray[Any] = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    if isinstance(image, Tensor) and values.ndim == 3:
        values = values.transpose(1, 2, 0)
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (1, 3)) or 0 in values.shape:
        layout = "(3, H, W)" if isinstance(image, Tensor) else "(H, W, 3)"
        raise BadImage(f"image must have shape {layout} or (H, W), got {tuple(image.shape)}")
    if values.dtype.kind == "f":
        if not (values.min() >= 0 and values.max() <= 1):  # also true for NaN
            raise BadImage("image contains floats outside [0, 1]: rescale them, or pass uint8")
        values = (values * 255 + 0.5).astype(np.uint8)
    if values.dtype != np.uint8:
        raise BadImage(f"image must be uint8 or floats in [0, 1], got {values.dtype}")
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(values))


def ordered(function: Callable[[T], U], values: Iterable[T], ahead: int) -> Iterator[U]:
    """Map a function over values in threads. Yield results in order, computing at most `ahead` of them in advance."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="decode") as pool:
        waiting: deque[Future[U]] = deque()
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the consumer may stop early
            for future in waiting:
                future.cancel()
