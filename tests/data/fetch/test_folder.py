"""The folder that images go to, and errors of the disk."""

import errno
import os
import signal

import pytest
from filelock import FileLock

from medic.data import benchmark
from medic.data import fetch as module
from medic.data.fetch import LOCK, RECORDS, fetch
from medic.errors import DiskFullError
from tests.data.fetch.archives import PACKED, TREE, below, files, refused, tree


def test_a_folder_that_exists_is_left_alone(site, toy, tmp_path):
    bench = toy(files(site.put("/toy.zip", PACKED)))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine").write_text("!")
    refused(lambda: fetch(bench, tmp_path), f"{tmp_path / 'toy'} already exists")
    assert tree(tmp_path / "toy") == {"mine": b"!"}
    (tmp_path / "toy" / "mine").unlink()
    assert tree(fetch(bench, tmp_path)) == TREE


def test_stopped_while_unpacking(site, toy, tmp_path, monkeypatch):
    bench = toy(files(site.put("/toy.zip", PACKED)))

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_unpack", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch(bench, tmp_path)
    assert below(tmp_path) == [".toy.download"]
    assert tree(fetch(bench, tmp_path)) == TREE
    assert below(tmp_path) == ["toy"]


def test_killed_while_unpacking(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    child = os.fork()
    if not child:
        module._find = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            fetch(toy(), root, archive=archive)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not (root / "toy").exists()
    assert tree(fetch(toy(), root, archive=archive)) == TREE
    assert below(root) == ["toy"]


def test_a_full_disk(toy, tmp_path, monkeypatch):
    archive = tmp_path / "toy.zip"
    archive.write_bytes(PACKED)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_unpack", full)
    with pytest.raises(DiskFullError, match="root"):
        fetch(toy(), tmp_path / "root", archive=archive)
    assert below(tmp_path / "root") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    root.mkdir(mode=0o500)
    refused(lambda: fetch(toy(), root, archive=archive), root, "Permission denied")


def test_mistakes_of_the_caller(toy, tmp_path):
    refused(lambda: fetch(benchmark("folder"), tmp_path), "dataset 'folder' cannot be downloaded")
    refused(lambda: fetch(toy(), tmp_path, url="file:///etc/passwd"), "file:///etc/passwd", "--archive")
    refused(lambda: fetch(toy(), tmp_path, url="http://[/x"), "http://[/x", "--archive")
    refused(lambda: fetch(toy(), tmp_path, url="http://x", archive=tmp_path), "--url and --archive")
    refused(lambda: fetch(toy(), tmp_path, archive=tmp_path / "none.zip"), f"--archive {tmp_path / 'none.zip'}")
    (tmp_path / "file").touch()
    refused(lambda: fetch(toy(), tmp_path / "file"), tmp_path / "file", "File exists")
    for damage in ("junk", "[]", '{"checksums": 1}'):
        (tmp_path / RECORDS).write_text(damage)
        refused(lambda: fetch(toy(files("http://x/y")), tmp_path), tmp_path / RECORDS, "is damaged: delete it")


def test_one_process_at_a_time(toy, tmp_path):
    with FileLock(tmp_path / LOCK):
        refused(lambda: fetch(toy(), tmp_path), "another process", tmp_path)
