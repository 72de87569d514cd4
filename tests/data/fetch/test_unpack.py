"""Archives on disk, whole and damaged."""

import gzip
import os
import resource
import tarfile
import zipfile

import psutil
import pytest

from medic.data.fetch import fetch
from medic.errors import memory_checked
from tests.data.fetch.archives import PACKED, TREE, below, refused, tar_of, tree, zip_of


@pytest.mark.parametrize("pack", [zip_of, tar_of, lambda files: tar_of(files, compress="")])
def test_a_local_archive(toy, tmp_path, pack):
    archive = tmp_path / "mine"
    wrapped = {f"my copy/{name}": content for name, content in TREE.items()}
    archive.write_bytes(pack({**{f"__MACOSX/{name}": b"" for name in wrapped}, **wrapped}))
    assert tree(fetch(toy(), tmp_path / "root", archive=archive)) == TREE
    assert below(tmp_path) == ["mine", "root"]


def flipped(data: bytes, position: int) -> bytes:
    """The data with the bits of some bytes flipped."""
    return data[:position] + bytes(255 - byte for byte in data[position : position + 8]) + data[position + 8 :]


TWO = {"a/x": b"", "b/x": b""}
UNUSABLE = {
    "parent in tar": (tar_of({**TWO, "../out": b"!"}), "is damaged"),
    "absolute link in tar": (tar_of({**TWO, "out": b""}, kind=tarfile.SYMTYPE), "is damaged"),
    "device": (tar_of({"out": b""}, kind=tarfile.CHRTYPE), "is damaged"),
    "cut zip": (PACKED[:-30], "is damaged"),
    "cut tar.gz": (tar_of(TREE)[:30_000], "is damaged"),
    "cut tar": (tar_of(TREE, compress="")[:5000], "is damaged"),
    "wrong bytes in tar.xz": (flipped(tar_of(TREE, compress="xz"), 9000), "is damaged"),
    "wrong bytes in a zip of lzma": (flipped(zip_of(TREE, zipfile.ZIP_LZMA), 45), "is damaged"),
    "cut gz": (gzip.compress(os.urandom(5000))[:-30], "is damaged"),
    "wrong bytes": (zip_of({"a/x": b"x" * 99}).replace(b"a/x", b"b/y", 1), "is damaged"),
    "encrypted": (zip_of(TWO).replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"), "damaged"),
    "empty zip": (zip_of({}), "expected a folder that contains a, b"),
    "empty file": (b"", "expected a folder that contains a, b"),
    "a web page": (b"\n<html>", "is a web page"),
    "something else": (zip_of({"c/x": b""}), "expected a folder that contains a, b"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_archives_leave_nothing(toy, tmp_path, name):
    content, words = UNUSABLE[name]
    archive, root = tmp_path / "archive", tmp_path / "deep" / "root"
    archive.write_bytes(content)
    refused(lambda: fetch(toy(), root, archive=archive), f"archive {archive}: ", words)
    assert below(root) == []
    assert below(tmp_path) == ["archive", "deep"]


def test_names_stay_inside_the_folder(toy, tmp_path):
    """Windows programs write backslashes; absolute and parent paths are stripped."""
    archive = tmp_path / "odd"
    archive.write_bytes(zip_of({"a/": b"", "a\\cat\\x": b"1", "b/../../x": b"2", "/b/y": b"3"}))
    assert tree(fetch(toy(), tmp_path / "root", archive=archive)) == {"a/cat/x": b"1", "b/x": b"2", "b/y": b"3"}


def test_memory_that_a_damaged_header_asks_for(toy, tmp_path):
    """A dictionary of 4 GiB for a few bytes is damage, not a lack of memory."""
    packed = zip_of(TREE, zipfile.ZIP_LZMA)
    size = packed.index(b"\x09\x04\x05\x00\x5d") + 5  # behind liblzma's version and the length and kind of the settings
    archive = tmp_path / "archive"
    archive.write_bytes(packed[:size] + b"\xff" * 4 + packed[size + 4 :])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**30, before[1]))
    try:
        refused(
            memory_checked()(lambda: fetch(toy(), tmp_path / "root", archive=archive)),
            f"archive {archive}: ",
            "is damaged",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
