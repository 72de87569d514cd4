"""The optimizer and the schedule of a run."""

from typing import Any

import pytest
import torch
from torch import nn

from medic.config.optim import OptimConfig
from medic.runs.optimizer import make_optimizer, rate_factor


def optim(**values: Any) -> OptimConfig:
    usual: dict[str, Any] = {
        "iterations": 100, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "head_lr_scale": 10.0,
        "clip_norm": None, "schedule": "constant", "warmup": 0, "averaging": "none",
    }  # fmt: skip
    return OptimConfig(**{**usual, **values})


def test_step_schedule_falls_after_80_percent():
    schedule = optim(schedule="step", iterations=6000)
    assert [rate_factor(schedule, i) for i in (0, 4799, 4800, 5999)] == [1.0, 1.0, 0.1, 0.1]


def test_cosine_schedule():
    schedule = optim(schedule="cosine")
    assert [round(rate_factor(schedule, i), 6) for i in (0, 50, 100)] == [1.0, 0.5, 0.0]


def test_warmup_climbs_to_the_rate():
    schedule = optim(warmup=4)
    assert [rate_factor(schedule, i) for i in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("name", "kind"), [
    ("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW),
])  # fmt: skip
def test_optimizers_have_two_groups(name, kind):
    body, head = [nn.Parameter(torch.zeros(2))], [nn.Parameter(torch.zeros(3))]
    optimizer = make_optimizer(optim(optimizer=name, momentum=0.9 if name == "sgd" else None), body, head)
    assert type(optimizer) is kind
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 1.0])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.9
