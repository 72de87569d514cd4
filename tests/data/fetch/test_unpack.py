"""Archives of one's own, and hostile ones."""

import gzip
import os
import tarfile
from pathlib import Path

import pytest

from medic.data import unpack
from medic.data.download import address_hash
from medic.data.fetch import fetch, given
from medic.data.sources import Limits, drive
from tests.data.fetch.archives import PACKED, TREE, below, records, refused, tar_of, tree, zip_of


@pytest.mark.parametrize("pack", [zip_of, tar_of, lambda files: tar_of(files, compress=False)])
def test_a_local_archive(toy, tmp_path, pack):
    archive = tmp_path / "mine"
    wrapped = {f"my copy/{name}": content for name, content in TREE.items()}
    archive.write_bytes(pack({**{f"__MACOSX/{name}": b"" for name in wrapped}, **wrapped}))
    assert tree(fetch("toy", tmp_path / "root", archive=archive)) == TREE
    assert below(tmp_path) == ["mine", "root"]


def test_a_url_of_ones_own(site, toy, tmp_path):
    url = site.put("/mine?signature=secret", tar_of(TREE))
    assert tree(fetch("toy", tmp_path, url=url)) == TREE
    assert below(tmp_path) == ["toy"]
    assert list(records(tmp_path)["checksums"]) == [address_hash(url)]
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert given("https://drive.google.com/file/d/A/view").files[0].url == drive("A")


TWO = {"a/x": b"", "b/x": b""}
HOSTILE = {
    "parent in zip": (zip_of({**TWO, "a/../../out": b"!"}), "leads out"),
    "parent in tar": (tar_of({**TWO, "../out": b"!"}), "leads out"),
    "absolute in zip": (zip_of({**TWO, "/medic-out": b"!"}), "leads out"),
    "absolute in tar": (tar_of({**TWO, "/medic-out": b"!"}), "leads out"),
    "backslashes": (zip_of({**TWO, "a\\..\\..\\out": b"!"}), "leads out"),
    "drive letter": (zip_of({**TWO, "C:\\out": b"!"}), "leads out"),
    "empty name": (tar_of({**TWO, ".": b"!"}), "no name for a file"),
    "long name": (tar_of({**TWO, "a" * 300: b"!"}), "no name for a file"),
    "deep name": (tar_of({**TWO, "a/" * 50 + "x": b"!"}), "no name for a file"),
    "symbolic link in zip": (zip_of({**TWO, "out": b"/etc/passwd"}, mode=0o120777), "a link or a device"),
    "symbolic link in tar": (tar_of({"out": b""}, kind=tarfile.SYMTYPE), "a link or a device"),
    "hard link": (tar_of({"out": b""}, kind=tarfile.LNKTYPE), "a link or a device"),
    "device": (tar_of({"out": b""}, kind=tarfile.CHRTYPE), "a link or a device"),
    "pipe in zip": (zip_of({"out": b""}, mode=0o010644), "a link or a device"),
    "pipe in tar": (tar_of({"out": b""}, kind=tarfile.FIFOTYPE), "a link or a device"),
    "too many in zip": (zip_of({f"a/{i}": b"" for i in range(51)}), "more than 50 files"),
    "too many in tar": (tar_of({f"a/{i}": b"" for i in range(51)}), "more than 50 files"),
    "too large": (zip_of({**TWO, "a/y": os.urandom(1 << 20), "b/y": b"!"}), "larger than 1048576 bytes"),
    "file and folder": (zip_of({**TWO, "a": b"!"}), "twice"),
    "folder in file": (zip_of({**TWO, "a/x/y": b"!"}), "twice"),
    "twice": (tar_of({**TWO, "./a/x": b"!"}), "twice"),
    "cut zip": (PACKED[:-30], "is damaged"),
    "cut tar.gz": (tar_of(TREE)[:-30], "is damaged"),
    "cut tar.gz, after all files": (gzip.compress(tar_of(TREE, compress=False) + bytes(300_000))[:-4], "is damaged"),
    "cut tar": (tar_of(TREE, compress=False)[:5000], "is damaged"),
    "cut gz": (gzip.compress(os.urandom(5000))[:-30], "is damaged"),
    "wrong bytes": (zip_of({"a/x": b"x" * 99}).replace(b"a/x", b"b/y", 1), "is damaged"),
    "encrypted": (zip_of(TWO).replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"), "damaged"),
    "empty zip": (zip_of({}), "there are no a, b side by side"),
    "nothing": (b"", "is no zip, tar, tar.gz or gz file"),
    "a web page": (b"\n<html>", "but a web page"),
    "something else": (zip_of({"c/x": b""}), "there are no a, b side by side"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_leave_nothing(toy, tmp_path, name):
    content, words = HOSTILE[name]
    archive, root = tmp_path / "hostile", tmp_path / "deep" / "root"
    archive.write_bytes(content)
    refused(lambda: fetch("toy", root, archive=archive), f"archive {archive}: ", words)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["deep", "deep/root", "hostile"]
    assert not Path("/medic-out").exists()


@pytest.mark.parametrize("pack", [zip_of, tar_of, lambda files: gzip.compress(b"".join(files.values()))])
def test_bombs_are_stopped_while_they_go_off(toy, tmp_path, pack, monkeypatch):
    toy(limits=Limits(size=1 << 30, files=50))
    written = []
    monkeypatch.setattr(unpack.Meter, "add", _spied(unpack.Meter.add, written))
    archive = tmp_path / "bomb"
    archive.write_bytes(pack({"a/x": bytes(30 << 20)}))
    refused(lambda: fetch("toy", tmp_path / "root", archive=archive), "more than 100 times as large as it is")
    assert sum(written) < 101 * archive.stat().st_size + (2 << 20)
    assert below(tmp_path / "root") == []


def _spied(add, written):
    def spy(self, size):
        written.append(size)
        add(self, size)

    return spy


def test_a_header_cannot_lie_about_the_size(toy, tmp_path):
    toy(limits=Limits(size=100_000, files=50))
    content = zip_of({**TWO, "a/y": bytes(900_000)})
    archive = tmp_path / "liar"
    archive.write_bytes(content.replace((900_000).to_bytes(4, "little"), (9).to_bytes(4, "little")))
    refused(lambda: fetch("toy", tmp_path / "root", archive=archive), "liar")
    assert below(tmp_path / "root") == []


def test_odd_names_are_made_plain(toy, tmp_path):
    archive = tmp_path / "odd"
    odd = {"./a//cat/\x1b[31mred\n.jpg": b"1", "b\\cat\\ü …x.jpg": b"2", "a/.../~": b"3", "b/\u202egpj.exe": b"4"}
    archive.write_bytes(tar_of(odd))
    expected = {"a/cat/_[31mred_.jpg": b"1", "b/cat/ü …x.jpg": b"2", "a/.../~": b"3", "b/_gpj.exe": b"4"}
    assert tree(fetch("toy", tmp_path / "root", archive=archive)) == expected
    archive.write_bytes(zip_of({"a/": b"", "b\\": b"", "a/x": b"1", "b\\x": b"2"}))  # with folders, as Windows has it
    assert tree(fetch("toy", tmp_path / "other", archive=archive)) == {"a/x": b"1", "b/x": b"2"}
