"""The seal of a finished run: file checksums, verified on every read. This module does not import torch."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from medic.errors import MedicError
from medic.runs.layout import DONE, ERROR


class Damaged(MedicError):
    """Raised for a damaged file; the caller adds the run's path."""

    def __init__(self, name: str) -> None:
        super().__init__(f"its {name} is damaged")


@dataclass(frozen=True)
class Seal:
    """Content of `done`: the run's duration in seconds, and the CRC-32 of each file."""

    seconds: float
    checksums: Mapping[str, int]

    def check(self, path: Path, content: bytes | None = None) -> None:
        """Raise an error if a file's checksum does not match; pass `content` to avoid reading the file again."""
        if (wanted := self.checksums.get(path.name)) is None:
            return
        if wanted != (_checksum(path) if content is None else zlib.crc32(content)):
            raise Damaged(path.name)


def make_seal(folder: Path, seconds: float) -> str:
    """Return the content of `done` for a folder. Its second line is the checksum of the first line."""
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name[0] != "." and path.name not in (DONE, ERROR)
    ]
    line = json.dumps({"seconds": round(seconds, 2), "checksums": {path.name: _checksum(path) for path in files}})
    return f"{line}\n{zlib.crc32(line.encode())}\n"


def read_seal(folder: Path) -> Seal:
    """Read and verify `done`."""
    first, *rest = (folder / DONE).read_bytes().split(b"\n")
    if rest != [str(zlib.crc32(first)).encode(), b""]:
        raise Damaged(DONE)
    return Seal(**json.loads(first))


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
