"""Optimizers and schedules by name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine"]


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer by name, with its hyperparameters; only SGD has a momentum."""

    name: OptimizerName
    lr: float
    momentum: float | None
    weight_decay: float
    head_lr_scale: float

    def make(
        self,
        body: list[nn.Parameter],
        heads: list[nn.Parameter],
        others: Sequence[tuple[list[nn.Parameter], float]] = (),
    ) -> torch.optim.Optimizer:
        """Make an optimizer of the backbone, of the heads at `head_lr_scale` times its rate, and of others at theirs.

        On a GPU the rates are tensors and a step is one kernel, so that a CUDA graph can hold it at any rate.
        """
        device = heads[0].device
        on_gpu = device.type == "cuda"
        scaled = [(body, 1.0), (heads, self.head_lr_scale), *others]
        groups: list[dict[str, Any]] = [
            {"params": parameters, "lr": torch.tensor(scale * self.lr, device=device) if on_gpu else scale * self.lr}
            for parameters, scale in scaled
        ]
        fused = True if on_gpu else None
        if self.name == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum or 0.0, weight_decay=self.weight_decay, fused=fused)
        adam = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return adam(groups, weight_decay=self.weight_decay, capturable=on_gpu, fused=fused)


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """Set the learning rate of every group to `factor` times its base rate, without synchronising."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * factor)
        else:
            group["lr"] = rate * factor


@dataclass(frozen=True)
class RateSchedule:
    """The factor of the learning rates at each iteration, a pure function.

    `step` divides by 10 after 80 % of the iterations, `cosine` decays to 0, and the first `warmup` iterations climb
    linearly.
    """

    name: Schedule
    iterations: int
    warmup: int = 0

    def factor(self, iteration: int) -> float:
        """Return the factor of an iteration, counted from 0."""
        climb = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.name == "step":
            return climb * (0.1 if iteration >= int(0.8 * self.iterations) else 1.0)
        if self.name == "cosine":
            return climb * (1 + math.cos(math.pi * iteration / self.iterations)) / 2
        return climb
