"""Places of decoded images: a GPU, memory, a memory map, or files that are decoded on demand."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import MADV_DONTNEED, mmap
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.data.decode import THREADS
from medic.errors import MedicError

AROUND = 2**16
"""Bytes that the operating system maps around a page that is read."""


class Images(ABC):
    """N images of one size, gathered by position."""

    shape: tuple[int, int, int, int]
    """(N, channels, height, width)."""
    device = torch.device("cpu")
    ahead = 0
    """The number of iterations in advance at which `expect` should be called; 0 if it has no effect."""

    def expect(self, positions: Tensor) -> None:  # noqa: B027, most images need no prefetching
        """Prefetch the images at positions (n,), which will be gathered soon."""

    def draw_views(self, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the positions (n,) of random views of the images at positions (n,): the images, if they have one."""
        return positions

    @abstractmethod
    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the uint8 images (n, channels, height, width) at positions (n,), on a device."""


class Resident(Images):
    """Images in the memory of a GPU or of the machine."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.device = pixels, pixels.device
        self.shape = tuple(pixels.shape)  # type: ignore[assignment]

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the images at positions (n,)."""
        # index_select copies whole images; indexing with a tensor would copy pixel by pixel.
        return self.pixels.index_select(0, positions.to(self.pixels.device)).to(device)


class Views(Resident):
    """Several views of each of N images. The first N rows are the plain images; others serve training only."""

    def __init__(self, views: Sequence[Tensor]) -> None:
        super().__init__(torch.cat(list(views)))
        self.count, self.views = len(views[0]), len(views)

    def draw_views(self, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the positions (n,) of a random view of each image."""
        return positions + self.count * torch.randint(self.views, positions.shape, generator=generator)


class Items(Images):
    """Inputs in a sequence, which may read them when they are used; an item is a tensor, or begins with one."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.shape = (len(items), *self._load(0).shape)

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the inputs (n, …) at positions (n,)."""
        return torch.stack([self._load(position) for position in positions.tolist()]).to(device)

    def _load(self, position: int) -> Tensor:
        item = self.items[position]
        tensor: Tensor = item[0] if isinstance(item, tuple | list) else item
        return tensor


class Mapped(Images):
    """Images in a memory-mapped file; each is checked against its checksum (CRC-32) when first read.

    Touched pages count as memory of the process, so they are released whenever they could exceed `limit` bytes. The
    operating system still caches them while it has room.
    """

    def __init__(
        self, pixels: "np.memmap[Any, np.dtype[np.uint8]]", checksums: NDArray[np.uint32], limit: int = 2**28
    ) -> None:
        self.pixels, self.checksums, self.limit = pixels, checksums, limit
        self.shape = tuple(pixels.shape)
        self._checked = np.zeros(len(pixels), dtype=bool)
        self._touched = 0

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Copy the images at positions (n,) from the file."""
        rows = positions.cpu().numpy()
        gathered = np.asarray(self.pixels[rows])
        self._check(gathered, rows)
        self._touched += gathered.nbytes + len(rows) * AROUND
        if self._touched > self.limit:
            mapping: mmap = self.pixels._mmap  # type: ignore[attr-defined]
            mapping.madvise(MADV_DONTNEED)
            self._touched = 0
        return torch.from_numpy(gathered).to(device)

    def load(self, device: torch.device) -> Resident:
        """Read all images, in threads, into the memory of a device."""
        loaded, rows = np.empty(self.shape, np.uint8), np.arange(self.shape[0])

        def read(start: int) -> None:
            part = slice(start, start + 256)
            loaded[part] = self.pixels[part]
            self._check(loaded[part], rows[part])

        with ThreadPoolExecutor() as pool:
            list(pool.map(read, range(0, len(loaded), 256)))
        return Resident(torch.from_numpy(loaded).to(device))

    def _check(self, pixels: NDArray[np.uint8], rows: NDArray[np.intp]) -> None:
        """Raise an error if the pixels of one of these rows, read for the first time, changed on disk."""
        for i in np.flatnonzero(~self._checked[rows]):
            if crc32(pixels[i].data) != self.checksums[rows[i]]:
                raise MedicError(f"the store {self.pixels.filename} is damaged: delete it and rerun the command")
        self._checked[rows] = True


class Streamed(Images):
    """Images that are decoded in threads whenever they are gathered; expected ones are decoded in advance."""

    ahead = 2

    def __init__(self, decode: Callable[[int], NDArray[np.uint8]], shape: tuple[int, int, int, int]) -> None:
        self.shape, self._decode = shape, decode
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._expected: dict[int, Future[NDArray[np.uint8]]] = {}

    def expect(self, positions: Tensor) -> None:
        """Start to decode the images at positions (n,)."""
        for position in positions.tolist():
            if position not in self._expected:
                self._expected[position] = self._pool.submit(self._decode, position)

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the images at positions (n,), decoding those that were not expected."""
        self.expect(positions)
        chosen = [self._expected[position] for position in positions.tolist()]
        try:
            pixels = np.stack([future.result() for future in chosen])
        finally:
            for position in positions.tolist():
                self._expected.pop(position, None)
        return torch.from_numpy(pixels).to(device)
