"""The seal of a finished run: checksums of its files, which are checked wherever a file is read. No torch."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from medic.errors import MedicError
from medic.runs.layout import DONE, ERROR


class Damaged(MedicError):
    """Raised for a damaged file of a run; the caller adds the path of the run."""

    def __init__(self, name: str) -> None:
        super().__init__(f"its {name} is damaged")


@dataclass(frozen=True)
class Seal:
    """The content of `done`: the duration of a run in seconds, and the CRC-32 of each of its files."""

    seconds: float
    checksums: Mapping[str, int]

    def check(self, path: Path, content: bytes | None = None) -> None:
        """Refuse a file of the run that differs from what the run wrote; `content` saves reading it."""
        if (wanted := self.checksums.get(path.name)) is None:
            return
        if wanted != (_checksum(path) if content is None else zlib.crc32(content)):
            raise Damaged(path.name)


def make_seal(folder: Path, seconds: float) -> str:
    """Return the content of `done` for the files of a folder. Its second line is the checksum of the first."""
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name[0] != "." and path.name not in (DONE, ERROR)
    ]
    line = json.dumps({"seconds": round(seconds, 2), "checksums": {path.name: _checksum(path) for path in files}})
    return f"{line}\n{zlib.crc32(line.encode())}\n"


def read_seal(folder: Path) -> Seal:
    """Read `done`."""
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
