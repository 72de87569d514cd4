"""MIRO (Cha et al. 2022): features that stay close to the pretrained features."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError
from medic.objectives.objective import Penalty, Setup
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter

LEAST = 1e-5
"""Minimum variance."""


@dataclass(eq=False)
class Miro(Penalty, name="miro"):
    """λ Σ_l ½ mean[(f_l - f⁰_l)² / s_l + log s_l] over the stem and the stages l.

    f_l are the current feature maps, and f⁰_l those of the untrained model. The variances s_l = softplus(b_l) + 1e-5
    are learned per channel, at 10 times the learning rate. Batch norm is frozen.
    """

    weight: float = hyperparameter(0.1, on={"pacs": 0.01, "vlcs": 0.01})
    spreads: nn.ParameterList = field(init=False)
    lr_scale = 10.0
    inspects_backbone = True
    needs = ("tap",)
    preset: ClassVar[Mapping[str, Any]] = {"batch_norm": "frozen"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reference: nn.Module | None = None
        self.spreads = nn.ParameterList()

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Copy the untrained model, and make both models return their feature maps."""
        if not hasattr(model, "tap"):
            raise MedicError(f"penalty 'miro' requires a model with a method tap(): add it to {type(model).__name__}")
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.reference.tap(always=True)  # type: ignore[operator]
        channels: tuple[int, ...] = model.tap()  # type: ignore[operator]
        start = math.log(math.expm1(0.1 - LEAST))  # variances of 0.1
        self.spreads.extend(nn.Parameter(torch.full((count, 1, 1), start)) for count in channels)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare the feature maps of a step with those of the untrained model."""
        if self.reference is None or output.stages is None:
            raise MedicError("penalty 'miro' is not prepared: call objective.prepare(model, setup) before training")
        now = output.stages[0].dtype  # same precision for the reference, so that both start equal
        with torch.no_grad(), torch.autocast(step.x.device.type, torch.bfloat16, enabled=now == torch.bfloat16):
            before = Output.of(self.reference(step.x)).stages or ()
        terms = []
        for f, f0, spread in zip(output.stages, before, self.spreads, strict=True):  # maps (N, C, H, W)
            s = functional.softplus(spread) + LEAST  # (C, 1, 1)
            terms.append(((f.to(s) - f0.to(s)).square() / s + s.log()).mean() / 2)
        return self.weight * torch.stack(terms).sum()
