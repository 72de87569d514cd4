"""Archives to fetch, and helpers to inspect the result."""

import io
import json
import os
import tarfile
import zipfile

import pytest

from medic.data.benchmarks.base import File
from medic.data.fetch import LOCK, RECORDS
from medic.errors import MedicError

TREE = {f"{domain}/{label}/{i}.jpg": os.urandom(3000) for domain in "ab" for label in ("cat", "dog") for i in range(5)}


def zip_of(files, compression=zipfile.ZIP_DEFLATED):
    """A zip of contents by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tar_of(files, kind=tarfile.REGTYPE, compress="gz"):
    """A tar, compressed or not, of contents by name; `kind` is the kind of file that they claim to be."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compress}") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "" if kind == tarfile.REGTYPE else "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PACKED = zip_of(TREE)  # about 60 kB


def files(*urls, **options):
    """The files of a mirror, by address."""
    return tuple(File(url, **options) for url in urls)


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def below(folder):
    """The names in a folder, without the records and the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (RECORDS, LOCK))


def checksums(root):
    return json.loads((root / RECORDS).read_text())["checksums"] if (root / RECORDS).exists() else {}


def refused(call, *words):
    """The one line with which a call fails; it has all of the words."""
    with pytest.raises(MedicError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message
    return message
