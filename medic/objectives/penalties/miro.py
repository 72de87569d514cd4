"""MIRO (Cha et al. 2022): features that stay near those of the network before training."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, check_range
from medic.objectives.objective import Penalty, Setup
from medic.outputs import Output
from medic.tasks import Step

SPREAD = 0.1
"""What the variances start from."""
LEAST = 1e-5


class Miro(Penalty):
    """λ Σ_l ½ mean[(f_l - f⁰_l)² / s_l + log s_l] over the stem and the stages l, f⁰ the maps before training.

    Variances s_l = softplus(b_l) + 1e-5 are learnt, one a channel, at 10 times the learning rate.
    """

    rate = 10.0
    inside = True

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        check_range("MIRO", weight=weight)
        self.weight = weight
        self.reference: nn.Module | None = None
        self.spreads = nn.ParameterList()

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Keep a copy of the model as it is now, and ask both for their maps."""
        if not hasattr(model, "tap"):
            raise MedicError(
                f"the penalty 'miro' needs the maps of a model's stages: {type(model).__name__} has no tap()"
            )
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.reference.tap(always=True)  # type: ignore[operator]
        channels: tuple[int, ...] = model.tap()  # type: ignore[operator]
        start = math.log(math.expm1(SPREAD - LEAST))
        self.spreads.extend(nn.Parameter(torch.full((count, 1, 1), start)) for count in channels)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare the maps of a step with what the network gave before training."""
        if self.reference is None or output.stages is None:
            raise MedicError("the penalty 'miro' was not prepared: objective.prepare(model, setup) before training")
        now = output.stages[0].dtype  # as the model's maps were made, so that they begin the same
        with torch.no_grad(), torch.autocast(step.x.device.type, torch.bfloat16, enabled=now == torch.bfloat16):
            before = Output.of(self.reference(step.x)).stages
        assert before is not None
        terms = [
            _term(now, then, functional.softplus(spread) + LEAST)
            for now, then, spread in zip(output.stages, before, self.spreads, strict=True)
        ]
        return self.weight * torch.stack(terms).sum()


def _term(now: Tensor, then: Tensor, variance: Tensor) -> Tensor:
    """½ mean[(f - f⁰)² / s + log s] of maps (N, C, H, W) and variances (C, 1, 1)."""
    now, then = (maps.to(variance.dtype) for maps in (now, then))
    return ((now - then).square() / variance + variance.log()).mean() / 2
