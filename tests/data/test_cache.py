"""The cache of built datasets."""

import multiprocessing
import os
import time

import numpy as np

from medic.data.cache import cache_directory, cached


def test_built_once_and_again_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "deep" / "cache"))
    built = []

    def build():
        built.append(1)
        return {"a": np.arange(1000)}

    for _ in range(2):
        assert cached("x", build)["a"][7] == 7
    assert len(built) == 1
    (path,) = cache_directory().glob("*.npz")
    for damage in (path.read_bytes()[:-40], b"", b"junk", path.read_bytes().replace(b"\x07\x00", b"\x09\x00", 1)):
        path.write_bytes(damage)
        assert cached("x", build)["a"][7] == 7
    assert len(built) == 5
    assert {p.name for p in cache_directory().iterdir()} == {"x.npz", "x.lock"}


def _build_slowly(folder):
    """Be one of several processes that need the same arrays."""
    os.environ["MEDIC_CACHE"] = str(folder)

    def build():
        (folder / f"built-by-{os.getpid()}").touch()
        time.sleep(0.5)
        return {"a": np.arange(1000)}

    assert cached("x", build)["a"][7] == 7


def test_several_processes_build_once(tmp_path):
    """The features of a frozen backbone take the memory of one network, however many runs need them."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_build_slowly, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list(tmp_path.glob("built-by-*"))) == 1


def test_where(monkeypatch, tmp_path):
    monkeypatch.delenv("MEDIC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "medic"
