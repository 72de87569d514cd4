"""Archives to fetch, and what is looked at afterwards."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from medic.data.fetch import RECORDS
from medic.data.sources import File, Limits, Source
from medic.errors import MedicError

TREE = {f"{domain}/{label}/{i}.jpg": os.urandom(3000) for domain in "ab" for label in ("cat", "dog") for i in range(5)}
LIMITS = Limits(size=1 << 20, files=50)


class Log:
    """Remembers what it is told; `stop` is raised when so many bytes are there."""

    def __init__(self, stop_at=None, stop_on=None):
        self.lines, self.steps, self.stop_at, self.stop_on = [], [], stop_at, stop_on

    def say(self, line):
        self.lines.append(line)
        if self.stop_on and line.startswith(self.stop_on):
            raise KeyboardInterrupt

    def advance(self, done, total):
        self.steps.append((done, total))
        if self.stop_at and done >= self.stop_at:
            raise KeyboardInterrupt


def zip_of(files, mode=None):
    """A zip of contents by name; `mode` is the kind of file that they claim to be."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.filename = info.orig_filename = name  # even if no sane program would
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (mode or 0) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def tar_of(files, kind=tarfile.REGTYPE, compress=True):
    """A tar or tar.gz of contents by name; `kind` is the kind of file that they claim to be."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if compress else "w:") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "" if kind == tarfile.REGTYPE else "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PACKED = zip_of(TREE)  # about 60 kB


def source(*urls, checksum=None, **options):
    """A source of files by address, all zips unless said otherwise."""
    options = {"unpacking": "zip", **options}
    return Source("nowhere", tuple(File(url, Path(url).name, checksum=checksum, **options) for url in urls))


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def below(folder):
    """The names in a folder, without the records."""
    return sorted(path.name for path in folder.iterdir() if path.name != RECORDS)


def records(root):
    return json.loads((root / RECORDS).read_text())


def refused(call, *words):
    """The one line with which a call fails; it has all of the words."""
    with pytest.raises(MedicError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message
    return message
