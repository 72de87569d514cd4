"""Every image decoded once, to uint8 at one size, and kept in a file that later runs find again."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from medic.data.cache import cache_directory
from medic.data.decode import BadImage, decode
from medic.data.images import Images, Mapped, Resident, Streamed, check_row
from medic.data.listing import ImageList
from medic.errors import MedicError
from medic.files import write_text

FORMAT = 1
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


@dataclass(frozen=True)
class _Header:
    """What is known of a store's file."""

    size: int
    kept: tuple[int, ...]
    bad: tuple[str, ...]
    hash: str
    checksums: tuple[int, ...]

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
    place = _place(needed, where, device)
    if place == "stream":
        return _stream(listing, size, needed, report)
    path = cache_directory() / "stores" / f"{listing.quick_hash()[:32]}-{size}{'-unique' if unique else ''}"
    header = _Header.read(path.with_suffix(".json"))
    if header is None or _bytes(path.with_suffix(".bin")) != len(header.kept) * 3 * size * size:
        header = _build(path, listing, size, unique, report)
    _judge(header.bad, on_bad, report)
    pixels = np.memmap(path.with_suffix(".bin"), np.uint8, "r", shape=(len(header.kept), 3, size, size))
    images = _keep(pixels, np.array(header.checksums, np.uint32), place, device)
    report(f"{len(header.kept)} images of {size} px ({pixels.nbytes / 2**30:.2f} GiB) {_PLACES[place]}")
    return Store(images, header.kept, header.hash)


_PLACES = {"gpu": "on the GPU", "ram": "in memory", "map": "in a memory map"}


def _place(needed: int, where: Where, device: torch.device) -> str:
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
    root.mkdir(parents=True, exist_ok=True)
    return "map" if needed < 0.9 * shutil.disk_usage(root).free else "stream"


def _keep(pixels: NDArray[np.uint8], checksums: NDArray[np.uint32], place: str, device: torch.device) -> Images:
    if place == "map":
        return Mapped(pixels, checksums)
    loaded = np.empty(pixels.shape, np.uint8)

    def load(rows: slice) -> None:
        loaded[rows] = pixels[rows]
        for row, checksum in zip(loaded[rows], checksums[rows], strict=True):
            check_row(row, checksum)

    with ThreadPoolExecutor() as pool:
        list(pool.map(load, (slice(start, start + 256) for start in range(0, len(pixels), 256))))
    return Resident(torch.from_numpy(loaded).to(device if place == "gpu" else "cpu"))


def _stream(listing: ImageList, size: int, needed: int, report: Report) -> Store:
    """Nothing is kept, so nothing is read beforehand either: the fingerprint is that of names, sizes and times."""

    def decode_row(row: int) -> NDArray[np.uint8]:
        return decode(read_file(listing.files[row]), size, str(listing.files[row]))

    report(f"{len(listing)} images of {size} px ({needed / 2**30:.2f} GiB) decoded as they are needed")
    images = Streamed(decode_row, (len(listing), 3, size, size), workers=os.cpu_count() or 1)
    return Store(images, tuple(range(len(listing))), listing.quick_hash())


def _build(path: Path, listing: ImageList, size: int, unique: bool, report: Report) -> _Header:
    """Decode every image into a new file, unless another process has just done so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        header = _Header.read(path.with_suffix(".json"))
        if header is not None and _bytes(path.with_suffix(".bin")) == len(header.kept) * 3 * size * size:
            return header
        report(f"decoding {len(listing)} images to {size} px, once")
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            header = _decode_all(temporary, listing, size, unique)
            temporary.replace(path.with_suffix(".bin"))
        except OSError as error:
            raise MedicError(f"the store {path.parent} cannot be written: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
        header.write(path.with_suffix(".json"))
    return header


def _decode_all(path: Path, listing: ImageList, size: int, unique: bool) -> _Header:
    pixels = np.memmap(path, np.uint8, "w+", shape=(len(listing), 3, size, size))
    checksums, contents = np.zeros(len(listing), np.uint32), [b""] * len(listing)

    def decode_row(row: int) -> str | None:
        """Decode an image into its row; the message of one that cannot be."""
        try:
            data = read_file(listing.files[row])
            pixels[row] = decode(data, size, str(listing.files[row]))
        except BadImage as error:
            return str(error)
        checksums[row], contents[row] = crc32(pixels[row]), hashlib.sha256(data).digest()
        return None

    with ThreadPoolExecutor() as pool:
        messages = list(pool.map(decode_row, range(len(listing)), chunksize=64))
    kept = [row for row, message in enumerate(messages) if message is None]
    if unique:
        first = {(domain, contents[row]): row for row, domain in reversed(list(enumerate(listing.domain.tolist())))}
        kept = [row for row in kept if first[int(listing.domain[row]), contents[row]] == row]
    for position, row in enumerate(kept):  # close the gaps that bad images left
        if position != row:
            pixels[position] = pixels[row]
    pixels.flush()
    os.truncate(path, len(kept) * 3 * size * size)
    bad = tuple(message for message in messages if message is not None)
    hashed = content_hash(listing, kept, contents)
    return _Header(size, tuple(kept), bad, hashed, tuple(checksums[kept].tolist()))


def content_hash(listing: ImageList, kept: list[int], contents: list[bytes]) -> str:
    """A fingerprint of the kept images of a list: names, labels and the digests of their contents."""
    digest = hashlib.sha256("\0".join((*listing.domains, *listing.classes)).encode())
    domain, label = listing.domain.tolist(), listing.label.tolist()
    for row in kept:
        digest.update(f"{listing.names[row]}\0{domain[row]}\0{label[row]}\0".encode(errors="surrogateescape"))
        digest.update(contents[row])
    return digest.hexdigest()


def _judge(bad: tuple[str, ...], on_bad: OnBad, report: Report) -> None:
    """Refuse a dataset with images that cannot be read, or say how many are left out."""
    if not bad:
        return
    more = f", and {len(bad) - 1} more cannot be read" if len(bad) > 1 else ""
    if on_bad == "error":
        raise MedicError(f"{bad[0]}{more}; --on-bad-image skip leaves them out")
    report(f"{len(bad)} images left out: {bad[0]}{more}")


def read_file(path: Path) -> bytes:
    """The bytes of an image file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror}") from error


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that another process of the same store waits for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
