"""Seeds, checkpoints and the trainer."""

import resource
from pathlib import Path

import pytest
import torch

from medic.errors import MedicError
from medic.training import derive, generator, load_checkpoint, save_checkpoint
from tests.messages import naming


def test_seeds_differ_by_name_and_root():
    assert len({derive(seed, name) for seed in range(50) for name in ("tasks", "augment", "model")}) == 150
    assert torch.equal(torch.rand(3, generator=generator(0, "a")), torch.rand(3, generator=generator(0, "a")))


class TestCheckpoint:
    def test_round_trip(self, tmp_path):
        path = tmp_path / "checkpoint" / "last.pt"
        state = {"a": torch.arange(3), "b": {"c": [1.5, "x", None]}}
        save_checkpoint(path, state)
        loaded = load_checkpoint(path)
        assert torch.equal(loaded["a"], state["a"])
        assert loaded["b"] == state["b"]
        assert [p.name for p in path.parent.iterdir()] == ["last.pt"]

    @pytest.mark.parametrize("room", [0, 2_000, 12_000])
    def test_a_full_disk_keeps_what_was_there(self, tmp_path, room):
        """The system refuses to write beyond some bytes, as it does on a full disk."""
        path = tmp_path / "last.pt"
        save_checkpoint(path, {"a": torch.arange(3)})
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                save_checkpoint(path, {"a": torch.zeros(2_000), "b": torch.zeros(2_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]
        assert torch.equal(load_checkpoint(path)["a"], torch.arange(3))

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
    def test_truncated(self, tmp_path, share):
        path = tmp_path / "last.pt"
        save_checkpoint(path, {"a": torch.arange(1000)})
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(MedicError, match=naming("last.pt")):
            load_checkpoint(path)

    def test_nothing_in_it_is_executed(self, tmp_path):
        class Hostile:
            def __reduce__(self):
                return Path.touch, (tmp_path / "executed",)

        torch.save({"medic_checkpoint": 1, "state": Hostile()}, tmp_path / "last.pt")
        with pytest.raises(MedicError, match=naming("last.pt")):
            load_checkpoint(tmp_path / "last.pt")
        assert not (tmp_path / "executed").exists()

    def test_foreign(self, tmp_path):
        for name, value in (("dict.pt", {"a": 1}), ("list.pt", [1])):
            torch.save(value, tmp_path / name)
            with pytest.raises(MedicError, match=naming(name)):
                load_checkpoint(tmp_path / name)
        (tmp_path / "text.pt").write_text("hello")
        with pytest.raises(MedicError, match=naming("text.pt")):
            load_checkpoint(tmp_path / "text.pt")
