"""How files are written so that nobody ever sees half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file beside `path` and rename it once it is whole and on disk."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one move."""
    with atomic_write(path) as file:
        file.write(text.encode())
