"""Image storage: on a GPU, in memory, memory-mapped, or decoded on demand."""

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
"""Bytes that the operating system maps around each page it reads."""


class Images(ABC):
    """N images of the same size, accessed by index."""

    shape: tuple[int, int, int, int]
    """The shape (N, channels, height, width)."""
    device = torch.device("cpu")
    ahead = 0
    """How many iterations in advance to call `expect`; 0 if `expect` has no effect."""

    def expect(self, positions: Tensor) -> None:  # noqa: B027, most images need no prefetching
        """Prefetch images that will be gathered soon."""

    def draw_views(self, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the positions of a random view of each image. By default, every image has one view: itself."""
        return positions

    @abstractmethod
    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return uint8 images of shape (n, channels, height, width) on a device; `positions` has shape (n,)."""


class Resident(Images):
    """Images in GPU or CPU memory."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.device = pixels, pixels.device
        self.shape = tuple(pixels.shape)  # type: ignore[assignment]

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the images at `positions`."""
        # index_select copies whole images; indexing with a tensor would copy pixel by pixel.
        return self.pixels.index_select(0, positions.to(self.pixels.device)).to(device)


class Views(Resident):
    """Several views of N images. The first N rows are the plain images; the remaining rows are for training only."""

    def __init__(self, views: Sequence[Tensor]) -> None:
        super().__init__(torch.cat(list(views)))
        self.count, self.views = len(views[0]), len(views)

    def draw_views(self, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the positions of a random view of each image."""
        return positions + self.count * torch.randint(self.views, positions.shape, generator=generator)


class Items(Images):
    """Inputs from a sequence that may load them lazily. Each item is a tensor, or a tuple that starts with one."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.shape = (len(items), *self._load(0).shape)

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the inputs at `positions`, of shape (n, …)."""
        return torch.stack([self._load(position) for position in positions.tolist()]).to(device)

    def _load(self, position: int) -> Tensor:
        item = self.items[position]
        tensor: Tensor = item[0] if isinstance(item, tuple | list) else item
        return tensor


class Mapped(Images):
    """Images in a memory-mapped file. The CRC-32 checksum of each image is verified on its first read.

    Pages that have been read count towards the memory of the process, so they are released when they could exceed
    `limit` bytes. The operating system may still cache them.
    """

    def __init__(
        self, pixels: "np.memmap[Any, np.dtype[np.uint8]]", checksums: NDArray[np.uint32], limit: int = 2**28
    ) -> None:
        self.pixels, self.checksums, self.limit = pixels, checksums, limit
        self.shape = tuple(pixels.shape)
        self._checked = np.zeros(len(pixels), dtype=bool)
        self._touched = 0

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Copy the images at `positions` from the file."""
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
        """Load all images into a device's memory, using threads."""
        loaded, rows = np.empty(self.shape, np.uint8), np.arange(self.shape[0])

        def read(start: int) -> None:
            part = slice(start, start + 256)
            loaded[part] = self.pixels[part]
            self._check(loaded[part], rows[part])

        with ThreadPoolExecutor() as pool:
            list(pool.map(read, range(0, len(loaded), 256)))
        return Resident(torch.from_numpy(loaded).to(device))

    def _check(self, pixels: NDArray[np.uint8], rows: NDArray[np.intp]) -> None:
        """Verify the checksums of rows that are read for the first time."""
        for i in np.flatnonzero(~self._checked[rows]):
            if crc32(pixels[i].data) != self.checksums[rows[i]]:
                raise MedicError(f"image store {self.pixels.filename} is damaged: delete it and rerun the command")
        self._checked[rows] = True


class Streamed(Images):
    """Images that are decoded in threads each time they are gathered, or in advance with `expect`."""

    ahead = 2

    def __init__(self, decode: Callable[[int], NDArray[np.uint8]], shape: tuple[int, int, int, int]) -> None:
        self.shape, self._decode = shape, decode
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._expected: dict[int, Future[NDArray[np.uint8]]] = {}

    def expect(self, positions: Tensor) -> None:
        """Start decoding the images at `positions`."""
        for position in positions.tolist():
            if position not in self._expected:
                self._expected[position] = self._pool.submit(self._decode, position)

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return the images at `positions`, decoding those that were not prefetched."""
        self.expect(positions)
        chosen = [self._expected[position] for position in positions.tolist()]
        try:
            pixels = np.stack([future.result() for future in chosen])
        finally:
            for position in positions.tolist():
                self._expected.pop(position, None)
        return torch.from_numpy(pixels).to(device)
