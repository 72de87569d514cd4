"""Optimizers and schedules by name."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

OptimizerName = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine"]


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer by name, with its numbers; only SGD has a momentum."""

    name: OptimizerName
    lr: float
    momentum: float | None
    weight_decay: float
    head_lr_scale: float

    def make(self, body: list[nn.Parameter], heads: list[nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer of two groups: the backbone, and the heads, whose rate is `head_lr_scale` times the other."""
        groups = [{"params": body, "lr": self.lr}, {"params": heads, "lr": self.lr * self.head_lr_scale}]
        if self.name == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum or 0.0, weight_decay=self.weight_decay)
        adam = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return adam(groups, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class RateSchedule:
    """What the learning rates are multiplied with at each iteration; a pure function, so it has no state.

    `step` divides them by 10 after 80 % of the iterations, `cosine` takes them to 0, and the first `warmup`
    iterations climb to them in a straight line.
    """

    name: Schedule
    iterations: int
    warmup: int = 0

    def factor(self, iteration: int) -> float:
        """The factor of an iteration, counted from 0."""
        climb = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.name == "step":
            return climb * (0.1 if iteration >= int(0.8 * self.iterations) else 1.0)
        if self.name == "cosine":
            return climb * (1 + math.cos(math.pi * iteration / self.iterations)) / 2
        return climb
