"""Image stores: every file is decoded once to uint8 at one size, and later runs reuse the pixels."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from medic.data.cache import cache_directory
from medic.data.decode import THREADS, BadImage, decode, read_file
from medic.data.images import Images, Mapped, Streamed
from medic.errors import MedicError, counted, unwritten
from medic.utils.files import atomic_write, locked, write_text

if TYPE_CHECKING:
    from medic.data.listing import ImageList

logger = logging.getLogger(__name__)

FORMAT = 2
BATCH = 512
"""Number of files that are read at a time, which bounds the memory for decoded images."""
Where = Literal["auto", "gpu", "ram", "map", "stream"]
OnBad = Literal["error", "skip"]
PLACES = {"gpu": "on the GPU", "ram": "in memory", "map": "memory-mapped", "stream": "decoded on demand"}


@dataclass(frozen=True)
class Storage:
    """Where and at what size in pixels to keep decoded images, and how to handle unreadable files."""

    size: int
    where: Where = "auto"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    on_bad: OnBad = "error"


@dataclass(frozen=True)
class StoreIndex:
    """The index of an image store: which images it contains, in the order of the image list."""

    size: int
    kept: tuple[int, ...]
    """Indices into the image list."""
    bad: tuple[str, ...]
    """Error messages for unreadable files."""
    hash: str
    """A fingerprint of names, labels and file contents."""
    frames: tuple[tuple[int, int], ...]
    """Original height and width of each image, before resizing to a square."""
    checksums: tuple[int, ...]
    """CRC-32 checksum of each image in the store; empty if images are decoded on demand."""

    @classmethod
    def read(cls, path: Path) -> "StoreIndex | None":
        """Read a store's index. Return None if one of its files is missing, damaged or in a different format."""
        try:
            values = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if values.pop("format") != FORMAT:
                return None
            fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            index = cls(**fields)
            expected = len(index.checksums) * 3 * index.size**2
            return index if not expected or path.with_suffix(".bin").stat().st_size == expected else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def open_store(listing: "ImageList", storage: Storage) -> tuple[Images, StoreIndex]:
    """Open the images in a list, with their index. Decodes the files first unless a store exists."""
    size = storage.size
    needed = len(listing) * 3 * size * size
    place = choose_place(needed, storage.where, storage.device)
    path = _path(listing, "stream" if place == "stream" else str(size))
    index = StoreIndex.read(path)
    if index is None:
        try:
            index = _build(path, listing, size, in_file=place != "stream")
        except OSError as error:
            raise unwritten("the store", path.parent, error) from error
    _check_bad(listing, index, storage.on_bad)
    logger.info("%d images at %d px (%.2f GiB) %s", len(index.kept), size, needed / 2**30, PLACES[place])
    if place == "stream":
        return stream(listing, index, size), index
    pixels = np.memmap(path.with_suffix(".bin"), np.uint8, "r", shape=(len(index.kept), 3, size, size))
    images = Mapped(pixels, np.array(index.checksums, np.uint32))
    return images if place == "map" else images.load(storage.device if place == "gpu" else torch.device("cpu")), index


def stream(listing: "ImageList", index: StoreIndex, size: int) -> Streamed:
    """Return images that are decoded on demand."""
    files = [listing.files[row] for row in index.kept]
    shape = (len(files), 3, size, size)
    return Streamed(lambda row: decode(read_file(files[row]), size, files[row])[0], shape)


def find_index(listing: "ImageList", storage: Storage) -> StoreIndex:
    """Return the index of an existing store, or the index that a new store would have. Writes nothing.

    If no store exists, all files are read. They are also decoded if unreadable files are to be skipped. Otherwise every
    file is included, and training stops at an unreadable file.
    """
    stores = _path(listing, "*")
    paths = sorted(stores.parent.glob(f"{stores.name}.json"))
    matches = (path for path in paths if path.stem.endswith("-unique") == listing.unique)
    index = next(filter(None, map(StoreIndex.read, matches)), None)
    if index is None:
        logger.info("reading %d images", len(listing))
        contents = read_files(listing, storage.size if storage.on_bad == "skip" else None)
        index = make_index(listing, storage.size, contents)
    _check_bad(listing, index, storage.on_bad)
    return index


def _path(listing: "ImageList", kind: str) -> Path:
    """Return a store's path without its suffix. `kind` is the image size or `stream`."""
    return cache_directory() / "stores" / f"{listing.quick_hash()[:32]}-{kind}{'-unique' if listing.unique else ''}"


def choose_place(needed: int, where: Where, device: torch.device) -> str:
    """Return the requested place, or for `auto` the fastest place with ample room for `needed` bytes."""
    if where != "auto":
        if where == "gpu" and device.type != "cuda":
            raise MedicError("store 'gpu' requires a GPU: use ram, map, stream or auto")
        return where
    if device.type == "cuda" and needed < 0.5 * torch.cuda.mem_get_info(device)[0]:
        return "gpu"
    if needed < 0.5 * psutil.virtual_memory().available:
        return "ram"
    root = cache_directory()
    while not root.exists():
        root = root.parent
    return "map" if needed < 0.9 * shutil.disk_usage(root).free else "stream"


def _build(path: Path, listing: "ImageList", size: int, in_file: bool) -> StoreIndex:
    """Decode all images and write the index, unless another process has just done so.

    With `in_file`, also write the pixels to a new store.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        index = StoreIndex.read(path)
        if index is not None:
            return index
        logger.info("decoding %d images to %d px (first use only)", len(listing), size)
        contents = read_files(listing, size)
        if in_file:
            with atomic_write(path.with_suffix(".bin")) as file:
                index = make_index(listing, size, contents, file.write)
        else:
            index = make_index(listing, size, contents)
        write_text(path.with_suffix(".json"), json.dumps({"format": FORMAT, **vars(index)}))
    return index


class FileContent(NamedTuple):
    """The contents of an image file: digest, height and width, and the pixels if it was decoded."""

    digest: bytes = b""
    frame: tuple[int, int] = (0, 0)
    pixels: NDArray[np.uint8] | None = None
    problem: str | None = None
    """Why the file cannot be read, if it cannot."""


def read_files(listing: "ImageList", size: int | None) -> Iterator[FileContent]:
    """Read all files in a list using threads, and yield their contents. If `size` is given, also decode the images."""

    def read(file: str) -> FileContent:
        try:
            data = read_file(file)
            pixels, frame = (None, (0, 0)) if size is None else decode(data, size, file)
        except BadImage as error:
            return FileContent(problem=str(error))
        return FileContent(hashlib.sha256(data).digest(), frame, pixels)

    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(listing), BATCH):
            yield from pool.map(read, listing.files[start : start + BATCH])


def make_index(
    listing: "ImageList",
    size: int,
    contents: Iterable[FileContent],
    write: Callable[[memoryview], object] | None = None,
) -> StoreIndex:
    """Build the index of all readable files in a list, and pass the pixels of each image to `write`.

    If the list is `unique`, only the first of several identical files in a domain is kept.
    """
    domain, label = listing.domain.tolist(), listing.label.tolist()
    digest = hashlib.sha256("\0".join((*listing.domains, *listing.classes)).encode(errors="surrogateescape"))
    kept, frames, checksums, bad, seen = [], [], [], [], set()
    for row, content in enumerate(contents):
        if content.problem is not None:
            bad.append(content.problem)
            continue
        if listing.unique and (domain[row], content.digest) in seen:
            continue
        seen.add((domain[row], content.digest))
        kept.append(row)
        frames.append(content.frame)
        digest.update(f"{listing.names[row]}\0{domain[row]}\0{label[row]}\0".encode(errors="surrogateescape"))
        digest.update(content.digest)
        if write is not None and content.pixels is not None:
            checksums.append(crc32(content.pixels.data))
            write(content.pixels.data)
    return StoreIndex(size, tuple(kept), tuple(bad), digest.hexdigest(), tuple(frames), tuple(checksums))


def _check_bad(listing: "ImageList", index: StoreIndex, on_bad: OnBad) -> None:
    """Raise an error if any image is unreadable, or log how many images are skipped."""
    if index.bad:
        others = len(index.bad) - 1
        message = index.bad[0] + (f", and {others} more cannot be read" if others else "")
        if on_bad == "error":
            raise MedicError(f"{message}: remove or replace the files, or skip them with --on-bad-image skip")
        logger.info("%s skipped: %s", counted(len(index.bad), "image"), message)
    if not index.kept:
        raise MedicError(f"none of the {len(listing)} images in {listing.name} can be read")
