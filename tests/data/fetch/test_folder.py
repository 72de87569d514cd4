"""The folder that images go to, and what the disk says."""

import fcntl
import hashlib
import os
import signal
from pathlib import Path

import pytest

from medic.data import unpack
from medic.data.fetch import RECORDS, fetch
from tests.data.fetch.archives import PACKED, TREE, below, refused, source, tree


def test_a_folder_that_exists_is_left_alone(site, toy, tmp_path):
    toy(source(site.put("/toy.zip", PACKED)))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine").write_text("!")
    refused(lambda: fetch("toy", tmp_path), f"{tmp_path / 'toy'} exists")
    assert tree(tmp_path) == {"toy/mine": b"!"}
    (tmp_path / "toy" / "mine").unlink()
    assert tree(fetch("toy", tmp_path)) == TREE
    assert len(site.requests) == 1


def test_stopped_while_unpacking(site, toy, tmp_path, monkeypatch):
    toy(source(site.put("/toy.zip", PACKED)))
    pieces = []

    def stop(stream):
        pieces.append(stream.read(100))
        if len(pieces) == 5:
            raise KeyboardInterrupt
        return pieces[-1]

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "_piece", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy", tmp_path)
    (part,) = below(tmp_path)
    assert part.endswith(".part")
    assert tree(fetch("toy", tmp_path)) == TREE
    assert len(site.requests) == 1


def test_killed_while_unpacking(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    child = os.fork()
    if not child:
        unpack._piece = lambda stream: os.kill(os.getpid(), signal.SIGKILL)
        try:
            fetch("toy", root, archive=archive)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not (root / "toy").exists()
    assert tree(fetch("toy", root, archive=archive)) == TREE
    assert below(root) == ["toy"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(site, toy, tmp_path):
    url = site.put("/toy.zip", PACKED)
    toy(source(url))
    part = tmp_path / f"toy.zip.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
    part.symlink_to("/dev/full")
    refused(lambda: fetch("toy", tmp_path), part, "No space left on device")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    root.mkdir(mode=0o500)
    refused(lambda: fetch("toy", root, archive=archive), root, "Permission denied")


def test_mistakes_of_the_callers(toy, tmp_path):
    refused(lambda: fetch("pasc", tmp_path), "did you mean 'pacs'?")
    refused(lambda: fetch("toy", tmp_path, url="file:///etc/passwd"), "file:///etc/passwd", "archive")
    refused(lambda: fetch("toy", tmp_path, url="http://[/x"), "http://[/x", "archive")
    refused(lambda: fetch("toy", tmp_path, url="http://127.0.0.1/ü"), "no address")
    refused(lambda: fetch("toy", tmp_path, url="http://x", archive=tmp_path), "not both")
    refused(lambda: fetch("toy", tmp_path, archive=tmp_path / "none.zip"), tmp_path / "none.zip", "No such file")
    (tmp_path / "file").touch()
    refused(lambda: fetch("toy", tmp_path / "file"), tmp_path / "file", "File exists")
    for damage in ("junk", "[]", '{"checksums": 1, "partial": {}}', '{"checksums": {}, "partial": {"u": {"x": 1}}}'):
        (tmp_path / RECORDS).write_text(damage)
        refused(lambda: fetch("toy", tmp_path), tmp_path / RECORDS, "is damaged: delete it")


def test_one_at_a_time(toy, tmp_path):
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    refused(lambda: fetch("toy", tmp_path), "another process", tmp_path)
    os.close(lock)
