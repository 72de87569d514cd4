"""The optimisation of a run: iterations, optimizer, learning rates and weight averaging."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, NONNEGATIVE, POSITIVE, Limits

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class OptimSpec(Spec):
    """The outer optimizer, its schedule, and the averaging of weights."""

    iterations: int = setting(1000, "outer updates; 1200 by default from pretrained weights", limits=COUNT, takes="N")
    optimizer: str | None = setting(
        None, "sgd, adam or adamw (default: the method's, or by starting point)", choices=("sgd", "adam", "adamw")
    )
    lr: float | None = setting(
        None, "learning rate (default: the method's, or by benchmark and starting point)", limits=POSITIVE, takes="RATE"
    )
    momentum: float | None = setting(
        None, "momentum of sgd (default: the method's)", limits=Limits(0, 1, below=True), takes="X"
    )
    weight_decay: float | None = setting(
        None, "weight decay (default: the method's, or by starting point)", limits=NONNEGATIVE, takes="RATE"
    )
    head_lr_scale: float | None = setting(
        None,
        "learning rate of the heads relative to the backbone's (default: the method's, 1)",
        limits=POSITIVE,
        takes="X",
    )
    clip_norm: float | None = setting(
        None, "largest norm of the gradient (default: unlimited)", limits=POSITIVE, takes="X"
    )
    schedule: str | None = setting(
        None,
        "step, cosine or constant (default: the method's, or by starting point)",
        choices=("step", "cosine", "constant"),
    )
    warmup: int = setting(0, "iterations of linear warm-up", limits=NONNEGATIVE, takes="N")
    averaging: str | None = setting(None, "average of weights as the result: swad, tail, ema or none (default: swad)")

    def completed(self) -> "OptimSpec":
        """Return the complete spec; rates and defaults are those of the layers below."""
        from medic.training import AVERAGES

        if self.warmup > self.iterations:
            raise MedicError(f"warmup is {self.warmup}: give at most the {self.iterations} iterations")
        assert self.lr is not None
        assert self.weight_decay is not None
        assert self.head_lr_scale is not None
        return replace(
            self,
            lr=float(self.lr),
            momentum=float(self.momentum or 0.0) if self.optimizer == "sgd" else None,
            weight_decay=float(self.weight_decay),
            head_lr_scale=float(self.head_lr_scale),
            averaging=check_choice("averaging", self.averaging or "none", ["none", *AVERAGES]),
        )

    def rate_factor(self, iteration: int) -> float:
        """Return the factor of the learning rates at an iteration, counted from 0.

        `step` divides by 10 after 80 % of the iterations, `cosine` decays to 0, and the first `warmup` iterations climb
        linearly.
        """
        climb = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.schedule == "step":
            return climb * (0.1 if iteration >= int(0.8 * self.iterations) else 1.0)
        if self.schedule == "cosine":
            return climb * (1 + math.cos(math.pi * iteration / self.iterations)) / 2
        return climb

    def make_optimizer(
        self,
        body: "list[nn.Parameter]",
        heads: "list[nn.Parameter]",
        others: "Sequence[tuple[list[nn.Parameter], float]]" = (),
    ) -> "torch.optim.Optimizer":
        """Make an optimizer of the backbone, of the heads at `head_lr_scale` times its rate, and of others at theirs.

        On a GPU the rates are tensors and a step is one kernel, so that a CUDA graph can hold it at any rate.
        """
        import torch

        assert self.lr is not None
        device = heads[0].device
        on_gpu = device.type == "cuda"
        groups: list[dict[str, Any]] = []
        for parameters, scale in ((body, 1.0), (heads, self.head_lr_scale or 1.0), *others):
            rate = scale * self.lr
            groups.append({"params": parameters, "lr": torch.tensor(rate, device=device) if on_gpu else rate})
        decay, fused = self.weight_decay or 0.0, True if on_gpu else None
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum or 0.0, weight_decay=decay, fused=fused)
        adam = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return adam(groups, weight_decay=decay, capturable=on_gpu, fused=fused)
