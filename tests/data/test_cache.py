"""The cache of built datasets."""

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
    (path,) = cache_directory().iterdir()
    for damage in (path.read_bytes()[:-40], b"", b"junk", path.read_bytes().replace(b"\x07\x00", b"\x09\x00", 1)):
        path.write_bytes(damage)
        assert cached("x", build)["a"][7] == 7
    assert len(built) == 5
    assert [p.name for p in cache_directory().iterdir()] == ["x.npz"]


def test_where(monkeypatch, tmp_path):
    monkeypatch.delenv("MEDIC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "medic"
