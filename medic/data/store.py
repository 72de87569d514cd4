"""Every image decoded once, to uint8 at one size, and kept in a file that later runs find again."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.data.cache import cache_directory
from medic.data.decode import BadImage, decode
from medic.data.images import Images, Mapped, Resident, Streamed, check_row
from medic.data.listing import ImageList
from medic.errors import MedicError, counted, unwritten
from medic.files import locked, write_text

FORMAT = 2
RESIDENT = 2**28
"""Bytes of a memory map that a process keeps in its own memory."""
Where = Literal["auto", "gpu", "ram", "map", "stream"]
OnBad = Literal["error", "skip"]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Store:
    """Decoded images, which of a list they are, and a fingerprint of the list and the files' contents."""

    images: Images
    kept: tuple[int, ...]
    """Positions in the list of the images that could be read."""
    hash: str
    frames: Tensor
    """The height and width (N, 2) that each image had before it was squashed to a square."""


@dataclass(frozen=True)
class _Header:
    """What is known of a store's file."""

    size: int
    kept: tuple[int, ...]
    bad: tuple[str, ...]
    hash: str
    frames: tuple[tuple[int, int], ...]
    checksums: tuple[int, ...]
    """Of the images in the file beside the header; none for a stream, which has no such file."""

    def write(self, path: Path) -> None:
        write_text(path, json.dumps({"format": FORMAT, **vars(self)}))

    @classmethod
    def read(cls, path: Path) -> "_Header | None":
        """Read a header, or None where there is none that can be used."""
        try:
            values: dict[str, Any] = json.loads(path.read_text())
            if values.pop("format") != FORMAT:
                return None
            fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            return cls(**fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def open_store(
    listing: ImageList,
    size: int,
    where: Where,
    device: torch.device,
    on_bad: OnBad,
    report: Report,
    unique: bool = False,
) -> Store:
    """The images of a list at `size` × `size` pixels, decoded now if no store has them, kept where they fit.

    With `unique`, an image whose file has the contents of an earlier one of its domain is left out.
    """
    needed = len(listing) * 3 * size * size
    place = choose_place(needed, where, device)
    streams = place == "stream"
    path = _path(listing, "stream" if streams else str(size), unique)
    header = _find(path)
    if header is None:
        try:
            header = _build(path, listing, size, unique, streams, report)
        except OSError as error:
            raise unwritten("the store", path.parent, error) from error
    _judge(listing, header, on_bad, report)
    report(f"{len(header.kept)} images of {size} px ({needed / 2**30:.2f} GiB) {PLACES[place]}")
    if streams:
        images = _stream(listing, header.kept, size)
    else:
        pixels = np.memmap(path.with_suffix(".bin"), np.uint8, "r", shape=(len(header.kept), 3, size, size))
        images = _keep(pixels, np.array(header.checksums, np.uint32), place, device)
    return Store(images, header.kept, header.hash, torch.tensor(header.frames).view(-1, 2))


class Known(NamedTuple):
    """What the images of a list are: the positions of those that are kept, and their fingerprint."""

    kept: tuple[int, ...]
    hash: str


def look(listing: ImageList, size: int, on_bad: OnBad, report: Report, unique: bool = False) -> Known:
    """What a store of a list has or would have, found without making one.

    If there is none every file is read. They are decoded only where bad ones are left out, to know which: where those
    are an error, whoever trains has all of them.
    """
    stores = _path(listing, "*", unique)
    found = (path for path in sorted(stores.parent.glob(f"{stores.name}.json")) if _is_unique(path) == unique)
    header = next(filter(None, map(_Header.read, found)), None)
    if header is None:
        report(f"reading {len(listing)} images")
        contents = read_images(listing, size) if on_bad == "skip" else _read_files(listing)
        kept = tuple(distinct(listing, contents) if unique else contents.readable)
        header = _Header(size, kept, contents.bad, content_hash(listing, kept, contents), (), ())
    _judge(listing, header, on_bad, report)
    return Known(header.kept, header.hash)


def _path(listing: ImageList, kind: str, unique: bool) -> Path:
    """The files of a store, without their suffix; `kind` is the size of its images, or that they are not kept."""
    return cache_directory() / "stores" / f"{listing.quick_hash()[:32]}-{kind}{'-unique' if unique else ''}"


def _is_unique(path: Path) -> bool:
    return path.stem.endswith("-unique")


PLACES = {
    "gpu": "on the GPU",
    "ram": "in memory",
    "map": "in a memory map",
    "stream": "decoded as they are needed",
}


def choose_place(needed: int, where: Where, device: torch.device) -> str:
    """The fastest place that the images fit into with room to spare, unless one is asked for."""
    if where != "auto":
        if where == "gpu" and device.type != "cuda":
            raise MedicError("store 'gpu': this run is not on a GPU; use ram, map, stream or auto")
        return where
    if device.type == "cuda" and needed < 0.5 * torch.cuda.mem_get_info(device)[0]:
        return "gpu"
    if needed < 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return "ram"
    root = cache_directory()
    while not root.exists():
        root = root.parent
    return "map" if needed < 0.9 * shutil.disk_usage(root).free else "stream"


def _keep(
    pixels: "np.memmap[Any, np.dtype[np.uint8]]", checksums: NDArray[np.uint32], place: str, device: torch.device
) -> Images:
    if place == "map":
        return Mapped(pixels, checksums, RESIDENT)
    loaded = np.empty(pixels.shape, np.uint8)

    def load(rows: slice) -> None:
        loaded[rows] = pixels[rows]
        for row, checksum in zip(loaded[rows], checksums[rows], strict=True):
            check_row(row, checksum, pixels.filename)

    with ThreadPoolExecutor() as pool:
        list(pool.map(load, (slice(start, start + 256) for start in range(0, len(pixels), 256))))
    return Resident(torch.from_numpy(loaded).to(device if place == "gpu" else "cpu"))


def _stream(listing: ImageList, kept: tuple[int, ...], size: int) -> Images:
    def decode_row(row: int) -> NDArray[np.uint8]:
        file = listing.files[kept[row]]
        return decode(read_file(file), size, file).pixels

    return Streamed(decode_row, (len(kept), 3, size, size), workers=os.cpu_count() or 1)


def _find(path: Path) -> "_Header | None":
    """The header of a store that is whole, or None."""
    header = _Header.read(path.with_suffix(".json"))
    if header is None:
        return None
    there = path.with_suffix(".bin").stat().st_size if path.with_suffix(".bin").exists() else 0
    return header if there == len(header.checksums) * 3 * header.size**2 else None


def _build(path: Path, listing: ImageList, size: int, unique: bool, streams: bool, report: Report) -> _Header:
    """Read every image, unless another process has just done so: into a new file, or to know them before a stream."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        header = _find(path)
        if header is not None:
            return header
        if streams:
            report(f"reading {len(listing)} images, once")
            header = _read_all(listing, size, unique, None)
        else:
            for left in path.parent.glob(f"{path.name}.*.tmp"):  # by a process that was killed while it decoded
                left.unlink(missing_ok=True)
            report(f"decoding {len(listing)} images to {size} px, once")
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                with temporary.open("w+b") as file:
                    header = _read_all(listing, size, unique, file.fileno())
                temporary.replace(path.with_suffix(".bin"))
            finally:
                temporary.unlink(missing_ok=True)
        header.write(path.with_suffix(".json"))
    return header


class Contents(NamedTuple):
    """What was read of a list of images: the digest of each file, empty for a bad one, its frame, and what is wrong."""

    digests: list[bytes]
    frames: list[tuple[int, int]]
    bad: tuple[str, ...]

    @property
    def readable(self) -> list[int]:
        """The positions of those that could be read."""
        return [row for row, digest in enumerate(self.digests) if digest]


def read_images(
    listing: ImageList, size: int, keep: Callable[[int, NDArray[np.uint8]], None] = lambda row, pixels: None
) -> Contents:
    """Decode every image of a list, several at once, and hand its pixels (3, size, size) to `keep`."""
    frames = [(0, 0)] * len(listing)

    def take(row: int, data: bytes) -> None:
        pixels, frames[row] = decode(data, size, listing.files[row])
        keep(row, pixels)

    return _read_files(listing, take)._replace(frames=frames)


def _read_files(listing: ImageList, take: Callable[[int, bytes], None] = lambda row, data: None) -> Contents:
    """Read every file of a list, several at once, and hand its bytes to `take`, which may say that it is bad."""
    digests = [b""] * len(listing)

    def read(row: int) -> str | None:
        """Read one; the message of one that cannot be."""
        try:
            data = read_file(listing.files[row])
            take(row, data)
        except BadImage as error:
            return str(error)
        digests[row] = hashlib.sha256(data).digest()
        return None

    with ThreadPoolExecutor() as pool:
        messages = pool.map(read, range(len(listing)), chunksize=64)
        return Contents(digests, [], tuple(message for message in messages if message is not None))


def _read_all(listing: ImageList, size: int, unique: bool, file: int | None) -> _Header:
    """Decode every image, into the rows of a file if one is given, and fingerprint those that can be read."""
    row_bytes = 3 * size * size
    checksums = np.zeros(len(listing), np.uint32)

    def keep(row: int, pixels: NDArray[np.uint8]) -> None:
        if file is not None:
            checksums[row] = crc32(pixels.data)
            _write(file, pixels.data, row * row_bytes)

    contents = read_images(listing, size, keep)
    kept = distinct(listing, contents) if unique else contents.readable
    if file is not None:
        for position, row in enumerate(kept):  # close the gaps that bad images left
            if position != row:
                _write(file, os.pread(file, row_bytes, row * row_bytes), position * row_bytes)
        os.truncate(file, len(kept) * row_bytes)
    stored = tuple(checksums[kept].tolist()) if file is not None else ()
    frames = tuple(contents.frames[row] for row in kept)
    return _Header(size, tuple(kept), contents.bad, content_hash(listing, kept, contents), frames, stored)


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write, not map: a full disk is then an error instead of the end of the process."""
    if os.pwrite(file, data, offset) != len(memoryview(data).cast("B")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def distinct(listing: ImageList, contents: Contents) -> list[int]:
    """Those of the readable images whose contents no earlier image of their domain has."""
    key = list(zip(listing.domain.tolist(), contents.digests, strict=True))
    first = {key[row]: row for row in reversed(contents.readable)}
    return [row for row in contents.readable if first[key[row]] == row]


def content_hash(listing: ImageList, kept: Sequence[int], contents: Contents) -> str:
    """A fingerprint of the kept images of a list: names, labels and the digests of their contents."""
    digest = hashlib.sha256("\0".join((*listing.domains, *listing.classes)).encode(errors="surrogateescape"))
    domain, label = listing.domain.tolist(), listing.label.tolist()
    for row in kept:
        digest.update(f"{listing.names[row]}\0{domain[row]}\0{label[row]}\0".encode(errors="surrogateescape"))
        digest.update(contents.digests[row])
    return digest.hexdigest()


def _judge(listing: ImageList, header: _Header, on_bad: OnBad, report: Report) -> None:
    """Refuse a dataset with images that cannot be read, or say how many are left out."""
    bad = header.bad
    if bad:
        more = f", and {len(bad) - 1} more cannot be read" if len(bad) > 1 else ""
        if on_bad == "error":
            raise MedicError(f"{bad[0]}{more}; --on-bad-image skip leaves {'them' if more else 'it'} out")
        report(f"{counted(len(bad), 'image')} left out: {bad[0]}{more}")
    if not header.kept:
        raise MedicError(f"none of the {len(listing)} images of {listing.name} can be read")


def read_file(path: str) -> bytes:
    """The bytes of an image file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror}") from error
