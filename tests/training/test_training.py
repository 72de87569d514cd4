"""Schedules, optimizers, seeds, checkpoints and the trainer."""

import errno
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.training import OptimizerSettings, RateSchedule, derive, generator, load_checkpoint, save_checkpoint
from tests.messages import naming


def test_step_schedule_falls_after_80_percent():
    factors = [RateSchedule("step", 6000).factor(i) for i in (0, 4799, 4800, 5999)]
    assert factors == [1.0, 1.0, 0.1, 0.1]


def test_cosine_schedule():
    schedule = RateSchedule("cosine", 100)
    assert [round(schedule.factor(i), 6) for i in (0, 50, 100)] == [1.0, 0.5, 0.0]


def test_warmup_climbs_to_the_rate():
    schedule = RateSchedule("constant", 100, warmup=4)
    assert [schedule.factor(i) for i in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("name", "kind"), [
    ("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW),
])  # fmt: skip
def test_optimizers_have_two_groups(name, kind):
    body, head = [nn.Parameter(torch.zeros(2))], [nn.Parameter(torch.zeros(3))]
    optimizer = OptimizerSettings(name, 0.1, 0.9 if name == "sgd" else None, 0.01, 10.0).make(body, head)
    assert type(optimizer) is kind
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 1.0])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.9


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
    def test_a_full_disk_keeps_what_was_there(self, tmp_path, monkeypatch, room):
        class Full(io.FileIO):
            def write(self, data):
                if self.tell() + len(memoryview(data).cast("B")) > room:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super().write(data)

        path = tmp_path / "last.pt"
        save_checkpoint(path, {"a": torch.arange(3)})
        monkeypatch.setattr(Path, "open", lambda self, mode: Full(self, mode))
        with pytest.raises(OSError, match="No space left on device"):
            save_checkpoint(path, {"a": torch.zeros(2_000), "b": torch.zeros(2_000)})
        assert [found.name for found in tmp_path.iterdir()] == ["last.pt"]
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
