"""The seal of a finished run: checksums of its files, which are checked wherever a file is read. No torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medic.errors import MedicError
from medic.runs.layout import DONE, ERROR


@dataclass(frozen=True)
class Seal:
    """The content of `done`: the duration of a run in seconds, and the sha256 of each of its files."""

    seconds: float | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Empty for a run of version 0.2 or earlier, which wrote none."""

    def check(self, path: Path, content: bytes | None = None) -> None:
        """Refuse a file of the run that differs from what the run wrote; `content` saves reading it."""
        if (wanted := self.sha256.get(path.name)) is None:
            return
        if wanted != (_digest(path) if content is None else hashlib.sha256(content).hexdigest()):
            raise damaged(path.name)


def make_seal(folder: Path, seconds: float) -> str:
    """Return the content of `done` for the files of a folder. Its second line is the checksum of the first."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "." and path.name != ERROR]
    content = {"seconds": round(seconds, 2), "sha256": {path.name: _digest(path) for path in files}}
    line = json.dumps(content)
    return f"{line}\n{hashlib.sha256(line.encode()).hexdigest()}\n"


def read_seal(folder: Path) -> Seal:
    """Read `done`."""
    try:
        first, *rest = (folder / DONE).read_bytes().split(b"\n")
        content = json.loads(first or b"{}")
        sealed = rest and rest[0]  # earlier versions wrote one line, or nothing
        if sealed and sealed.decode() != hashlib.sha256(first).hexdigest():
            raise ValueError
        return Seal(**content)
    except (OSError, ValueError, TypeError) as error:
        raise damaged(DONE) from error


def damaged(name: str) -> MedicError:
    """Return the error for a damaged file of a run; whoever catches it names the run."""
    return MedicError(f"its {name} is damaged")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
