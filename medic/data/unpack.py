"""Unpacking an archive that nobody vouches for: it writes files, only below its folder, and no more than it may."""

import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from medic.data.sources import File, Limits, Unpacking

_CHUNK = 1 << 16
_DEPTH = 32  # folders within folders in an archive
_SLACK = 1 << 20  # bytes that any archive may become, whatever its ratio


class Unusable(Exception):
    """A source is of no use; the next one may be."""


class Meter:
    """Counts what archives become while they become it, and stops at the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._size = self._files = 0
        self._of_archive = self._most_of_archive = 0

    def begin(self, archive_size: int) -> None:
        """An archive is opened."""
        self._of_archive, self._most_of_archive = 0, self.limits.ratio * archive_size + _SLACK

    def count(self) -> None:
        """There is one more file or folder."""
        self._files += 1
        if self._files > self.limits.files:
            raise Unusable(f"has more than {self.limits.files} files")

    def add(self, size: int) -> None:
        """There are more bytes."""
        self._size += size
        self._of_archive += size
        if self._size > self.limits.size:
            raise Unusable(f"becomes larger than {self.limits.size} bytes")
        if self._of_archive > self._most_of_archive:
            raise Unusable(f"becomes more than {self.limits.ratio} times as large as it is")


class _Stream(Protocol):
    """What can be read."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""


class _Metered(io.BufferedIOBase):
    """A stream whose bytes are counted as they are read."""

    def __init__(self, stream: _Stream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def read(self, size: int | None = -1, /) -> bytes:
        """Read and count."""
        content = self._stream.read(-1 if size is None else size)
        self._meter.add(len(content))
        return content


@contextmanager
def _reading() -> Iterator[None]:
    """Around everything that reads an archive: whatever goes wrong there, the archive is at fault."""
    try:
        yield
    except (
        OSError, EOFError, ValueError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError
    ) as error:  # fmt: skip
        raise Unusable(f"is damaged ({error})") from error


def unpack(file: File, path: Path, folder: Path, meter: Meter) -> None:
    """Write the files of an archive, and nothing but files, into a folder and below."""
    meter.begin(path.stat().st_size)
    try:
        for name, stream in _entries(path, file.name, _kind(path, file.unpacking), meter):
            target = inside(folder, name)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                out = target.open("xb")
            except (FileExistsError, NotADirectoryError):
                raise Unusable(f"has {name!r} twice") from None
            with out:
                while chunk := _piece(stream):
                    out.write(chunk)
    except Unusable as failure:
        raise Unusable(f"{file.name} {failure}") from failure


def _piece(stream: _Stream) -> bytes:
    with _reading():
        return stream.read(_CHUNK)


def _kind(path: Path, expected: Unpacking | None) -> Unpacking:
    """How a file is unpacked, going by its first bytes; they must agree with what is expected."""
    with _reading(), path.open("rb") as file:
        head = file.read(512)
        found: Unpacking = "plain"
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            found = "zip"
        elif head.startswith(b"\x1f\x8b"):
            file.seek(0)
            found = "tar.gz" if _is_tar(gzip.GzipFile(fileobj=file).read(512)) else "gz"
        elif _is_tar(head):
            found = "tar"
    if expected == "plain" or (found != "plain" and expected in (None, found)):
        return expected or found
    page = ", but a web page" if head.lstrip().startswith(b"<") else ""
    raise Unusable(f"is no {expected or 'zip, tar, tar.gz or gz'} file{page}")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _entries(path: Path, name: str, kind: Unpacking, meter: Meter) -> Iterator[tuple[str, _Stream]]:
    """The files in an archive with their names, in turn; a file that is no archive has one, itself."""
    if kind == "zip":
        yield from _zip_entries(path, meter)
        return
    with gzip.open(path) if kind in ("gz", "tar.gz") else path.open("rb") as stream:
        metered = _Metered(stream, meter)
        if kind in ("tar", "tar.gz"):
            yield from _tar_entries(metered, meter)
        else:
            yield name.removesuffix(".gz") if kind == "gz" else name, metered


def _zip_entries(path: Path, meter: Meter) -> Iterator[tuple[str, _Stream]]:
    with _reading(), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            meter.count()
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise Unusable(f"has {info.filename!r}, which is a link or a device")
            if not info.orig_filename.endswith(("/", "\\")):
                yield info.orig_filename, _Metered(archive.open(info), meter)


def _tar_entries(stream: _Metered, meter: Meter) -> Iterator[tuple[str, _Stream]]:
    with _reading(), tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            meter.count()
            content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is not None:
                yield member.name, content
            elif not member.isdir():
                raise Unusable(f"has {member.name!r}, which is a link or a device")
        while stream.read(_CHUNK):  # to the end, where gzip's own checksum is
            pass


def inside(folder: Path, name: str) -> Path:
    """The path of an archive's file below a folder. Characters that cannot be shown are replaced."""
    parts = re.split(r"[/\\]", name)
    if parts[0] == "" or re.match(r"[A-Za-z]:", name) or ".." in parts:
        raise Unusable(f"has {name!r}, which leads out of its folder")
    clean = [printable(part) for part in parts if part not in ("", ".")]
    if not clean or len(clean) > _DEPTH or max(len(part.encode()) for part in clean) > 255:
        raise Unusable(f"has {name[:80]!r}, which is no name for a file")
    return folder.joinpath(*clean)


def printable(text: str) -> str:
    """A text with every character that cannot be shown replaced."""
    return "".join(character if character.isprintable() else "_" for character in text)
