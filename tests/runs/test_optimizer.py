"""The optimizer and the schedule of a run."""

from typing import Any

import pytest
import torch

from medic.config.optim import OptimConfig
from medic.models import Classifier, create_backbone
from medic.models.blocks import parameters_by_depth
from medic.runs.optimizer import make_optimizer, rate_factor


def optim(**values: Any) -> OptimConfig:
    usual: dict[str, Any] = {
        "iterations": 100, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "head_lr_scale": 10.0,
        "layer_decay": 1.0, "head_first": 0, "clip_norm": 0.0, "schedule": "constant", "warmup": 0, "averaging": "none",
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
    model = Classifier(create_backbone("convnet"), 3)
    optimizer = make_optimizer(optim(optimizer=name, momentum=0.9 if name == "sgd" else None), model)
    assert type(optimizer) is kind
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 1.0])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet"])
def test_layer_decay_lowers_the_rate_from_block_to_block(name):
    model = Classifier(create_backbone(name), 3)
    *body, heads = make_optimizer(optim(layer_decay=0.5), model).param_groups
    blocks = parameters_by_depth(model.backbone)
    assert len(body) == len(blocks) > 2
    for group, (depth, block) in zip(body, enumerate(reversed(blocks), start=1), strict=True):
        assert group["lr"] == pytest.approx(0.1 * 0.5**depth)
        assert group["params"] == block
    assert heads["lr"] == pytest.approx(1.0)
    assert sum(len(group["params"]) for group in body) == len(list(model.backbone.parameters()))
