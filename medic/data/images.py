"""Where decoded images live: on a GPU, in memory, in a memory map, or nowhere until they are asked for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.errors import MedicError


class Images(Protocol):
    """N images of one size, gathered by position."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, channels, height, width)."""

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """The uint8 images at some positions (n,), on a device: (n, channels, height, width)."""


class Resident:
    """Images in the memory of a device, or of the machine."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, channels, height, width)."""
        return tuple(self.pixels.shape)  # type: ignore[return-value]

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Index the tensor."""
        # index_select copies whole images, where indexing with a tensor would go pixel by pixel.
        return self.pixels.index_select(0, positions.to(self.pixels.device)).to(device)


class Mapped:
    """Images in a file that is mapped into memory; a row is checked against its checksum when first read."""

    def __init__(self, pixels: NDArray[np.uint8], checksums: NDArray[np.uint32]) -> None:
        self.pixels, self.checksums = pixels, checksums
        self._checked = np.zeros(len(pixels), dtype=bool)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, channels, height, width)."""
        return self.pixels.shape

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Copy rows out of the map."""
        rows = positions.cpu().numpy()
        gathered = self.pixels[rows]
        for row in np.flatnonzero(~self._checked[rows]):
            check_row(gathered[row], self.checksums[rows[row]])
        self._checked[rows] = True
        return torch.from_numpy(gathered).to(device)


class Streamed:
    """Images that are decoded each time they are asked for, several at once."""

    def __init__(
        self, decode: Callable[[int], NDArray[np.uint8]], shape: tuple[int, int, int, int], workers: int
    ) -> None:
        self.shape = shape
        self._decode = decode
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Decode the images."""
        return torch.from_numpy(np.stack(list(self._pool.map(self._decode, positions.tolist())))).to(device)


def check_row(pixels: NDArray[Any], checksum: Any) -> None:
    """Refuse an image whose pixels changed on disk."""
    if crc32(np.ascontiguousarray(pixels).data) != int(checksum):
        raise MedicError("a cached image is damaged: delete the store of this dataset and start again")
