"""The optimizer and the schedule of a run."""

import pytest
import torch
from torch import nn

from medic.config.optim import OptimSpec


def test_step_schedule_falls_after_80_percent():
    factors = [OptimSpec(schedule="step", iterations=6000).rate_factor(i) for i in (0, 4799, 4800, 5999)]
    assert factors == [1.0, 1.0, 0.1, 0.1]


def test_cosine_schedule():
    schedule = OptimSpec(schedule="cosine", iterations=100)
    assert [round(schedule.rate_factor(i), 6) for i in (0, 50, 100)] == [1.0, 0.5, 0.0]


def test_warmup_climbs_to_the_rate():
    schedule = OptimSpec(schedule="constant", iterations=100, warmup=4)
    assert [schedule.rate_factor(i) for i in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("name", "kind"), [
    ("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW),
])  # fmt: skip
def test_optimizers_have_two_groups(name, kind):
    body, head = [nn.Parameter(torch.zeros(2))], [nn.Parameter(torch.zeros(3))]
    momentum = 0.9 if name == "sgd" else None
    spec = OptimSpec(optimizer=name, lr=0.1, momentum=momentum, weight_decay=0.01, head_lr_scale=10.0)
    optimizer = spec.make_optimizer(body, head)
    assert type(optimizer) is kind
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 1.0])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.9
