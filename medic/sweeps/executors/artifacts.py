"""Whether two machines share a folder, and how a run comes home where they do not."""

import dataclasses
import secrets
from pathlib import Path, PurePosixPath

from medic.errors import MedicError, unwritten
from medic.files import atomic_write, make_folder, write_text
from medic.runs.config import RunConfig
from medic.runs.directory import RunDirectory

CONFIG, DONE = "config.yaml", "done"


class Mark:
    """A file with a name that nobody can guess: a machine that finds it at the same path sees the same folder."""

    def __init__(self, folder: Path) -> None:
        make_folder("output", folder)
        self.path = folder.absolute() / f".shared-{secrets.token_hex(8)}"
        try:
            self.path.touch()
        except OSError as error:
            raise unwritten("output", folder, error) from error

    def remove(self) -> None:
        """Leave nothing behind."""
        self.path.unlink(missing_ok=True)


def pack(path: Path) -> dict[str, bytes]:
    """The files of a finished run by name, without its checkpoint, which is the largest and of no more use."""
    found = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
    names = {file.relative_to(path).as_posix(): file for file in found}
    return {name: file.read_bytes() for name, file in names.items() if not name.startswith("checkpoint/")}


def unpack(files: dict[str, bytes], directory: RunDirectory) -> None:
    """Write a run that was done elsewhere into its directory: each file in one move, and last that it is done."""
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise MedicError(f"run {directory.path.name} came back with a file {name!r}, which is not of a run")
    with directory.locked():
        for name in sorted(files, key=DONE.__eq__):
            path = directory.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(files[name])
            if name == CONFIG:
                config = dataclasses.replace(RunConfig.from_yaml(path), output=str(directory.path.parent))
                write_text(path, config.to_yaml())
