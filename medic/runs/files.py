"""The files of a run directory, verified when they are read. Importing this module does not import torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from medic.errors import MedicError, first_line, unread
from medic.runs.layout import DONE, check_run
from medic.runs.seal import Damaged, Seal, read_seal


class DamagedRun(MedicError):
    """Raised if a run's file is missing or differs from what the run wrote."""

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = f"{reason}: delete {path} and train the run again"
        super().__init__(f"cannot use run {path} because {self.reason}")


class RunFiles:
    """The files in a run directory. For a finished run, each file's checksum is verified."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._verified: set[str] = set()

    @cached_property
    def done(self) -> bool:
        """Whether the run was finished when this property was first read."""
        try:
            return (self.path / DONE).exists()
        except OSError:  # the folder cannot be opened: see `Run.damage`
            return False

    @cached_property
    def seal(self) -> Seal:
        """The run's duration and file checksums."""
        with self.errors_named(DONE):
            return read_seal(self.path)

    def check(self) -> None:
        """Raise an error if a file is missing or differs from what the run wrote."""
        for name in self.seal.checksums:
            with self.verified(name):
                pass

    def read(self, name: str) -> bytes:
        """Return the content of a file, after verifying its checksum if the run is finished."""
        path = self.path / name
        if not path.is_file() and path.exists():  # reading a pipe may never end
            raise Damaged(name)
        content = path.read_bytes()
        if self.done:
            self.seal.check(path, content)
        return content

    @contextmanager
    def verified(self, name: str) -> Iterator[Path]:
        """Verify the checksum of a finished run's large file once, and name the file in errors."""
        path = self.path / name
        with self.errors_named(name):
            if self.done and name not in self._verified:
                self.seal.check(path)
                self._verified.add(name)
            yield path

    @contextmanager
    def errors_named(self, name: str) -> Iterator[None]:
        """Turn exceptions into one-line errors that name the file and suggest a fix."""
        try:
            yield
        except Damaged as error:
            raise DamagedRun(self.path, str(error)) from error
        except (MedicError, MemoryError):
            raise
        except (LookupError, FileNotFoundError) as error:
            if not self.done:
                check_run(self.path)  # reports that the run is unfinished
                raise MedicError(f"run {self.path} has finished since it was opened: open it again") from error
            if isinstance(error, LookupError):
                raise DamagedRun(self.path, f"its {name} is damaged ({first_line(error)})") from None
            missing = Path(error.filename or name).name
            raise DamagedRun(self.path, f"its {missing} is missing") from error
        except OSError as error:
            raise unread(error.filename or self.path / name, error) from error
        except Exception as error:  # an untrusted file with a valid checksum can raise anything
            raise DamagedRun(self.path, f"its {name} is damaged ({first_line(error)})") from None
