"""CrossMatch (Zhu and Li 2022): learn from images made by gradient ascent, harder ones and ones of no known class.

Our reading: no code is public, and what the unknown images ascend and how the classifiers agree are our formulas.
"""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_range
from medic.modes import evaluating, statistics_kept
from medic.objectives.losses import acceptance, ce
from medic.objectives.objective import Loss, Objective, Parts, Risk, Setup
from medic.outputs import Output
from medic.tasks import Step

TURNOVER = 16
"""The steps in which the pools are made anew."""


class CrossMatch(Objective):
    """The losses on a step and on a pool of harder images, with two more on a pool of unknown ones.

    With p the softmax, q_k the one-vs-all probabilities and f the features, the penalty is the mean over the pools of

        losses(x⁺, y) + lam_n · L_neg(x_u) + lam_c · L_cc(x_u)
        L_neg = -(1/C) Σ_k log(1 - q_k),   L_cc = (1/C) Σ_k (p_k - q_k)²

    x⁺ and x_u start from an image x₀ of a step, and `ascents` steps of size `eta` lead them up

        known:    CE(x, y) - gamma · ‖f(x) - f(x₀)‖² / F
        unknown:  (1/C) Σ_k log(1 - q_k(x)) + H(p(x)) - gamma · ‖f(x) - f(x₀)‖² / F

    within the range of pixels; F is the number of features, with which the distance would grow. The pools hold as many
    images as a step. They roll: every step makes one image in `TURNOVER` anew, so that all steps cost the same.
    """

    inside = True
    known: Tensor
    labels: Tensor
    unknown: Tensor
    written: Tensor

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        lam_n: float = 1.0,
        lam_c: float = 1.0,
        eta: float = 1.0,
        gamma: float = 1.0,
        ascents: int = 15,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        check_range("CrossMatch", lam_n=lam_n, lam_c=lam_c, eta=eta, gamma=gamma)
        check_range("CrossMatch", 1, ascents=ascents)
        self.lam_n, self.lam_c, self.eta, self.gamma, self.ascents = lam_n, lam_c, eta, gamma, ascents
        self.setup: Setup | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Empty pools."""
        super().prepare(model, setup)
        self.setup = setup
        for name in ("known", "unknown"):
            self.register_buffer(name, torch.zeros(setup.images, *setup.shape))
        self.register_buffer("labels", torch.zeros(setup.images, dtype=torch.int64))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))  # in all: their place is the rest of it

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Measure a step, make some of its images into others, and measure the pools."""
        if self.setup is None:
            raise MedicError("CrossMatch was not prepared: objective.prepare(model, setup) before training")
        risk = super().forward(model, step)
        self._renew(model, step)
        return risk.plus(self._measure_pools(model, step))

    def ascend(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Known and unknown images, each (N, …), that start from inputs (N, …) of classes (N,)."""
        assert self.setup is not None
        low, high = (self.setup.to_inputs(x.new_full((1, 1, 1, 1), pixel)) for pixel in (0.0, 1.0))
        both, start = torch.cat([x, x]), None
        with evaluating(model), torch.enable_grad():
            for _ in range(self.ascents):
                both = both.detach().requires_grad_()
                output = Output.of(model(both))
                with torch.autocast(x.device.type, enabled=False):
                    features = _features(output)
                    start = features.detach() if start is None else start
                    first, second = _halves(output)
                    moved = (features - start).square().mean(1)
                    gain = torch.cat([ce(first, y), openness(second)]) - self.gamma * moved
                    (gradient,) = torch.autograd.grad(gain.sum(), both)
                    both = (both.detach() + self.eta * gradient).clamp(low, high)
        known, unknown = both.chunk(2)
        return known, unknown

    @torch.no_grad()
    def _renew(self, model: nn.Module, step: Step) -> None:
        """Write images made of a few random ones of a step over the oldest of the pools."""
        count = min(max(1, len(self.labels) // TURNOVER), len(step.y))
        chosen = torch.rand(len(step.y), device=step.y.device).argsort()[:count]
        known, unknown = self.ascend(model, step.x[chosen], step.y[chosen])
        places = (self.written + torch.arange(count, device=step.y.device)) % len(self.labels)
        self.known.index_copy_(0, places, known)
        self.unknown.index_copy_(0, places, unknown)
        self.labels.index_copy_(0, places, step.y[chosen])
        self.written += count

    def _measure_pools(self, model: nn.Module, step: Step) -> Tensor:
        """The mean loss of what is in the pools.

        Both go through the model together: with statistics of its own each pool would be told apart by them. Those
        that evaluation uses stay the step's. Until the pools are full, images of the step stand in for what is missing,
        for the statistics' sake.
        """
        labels = self.labels.clone()  # a second derivative comes back to them when the pools have rolled on
        rows = torch.arange(len(labels), device=step.y.device)
        there = rows < self.written
        others = step.x[rows % len(step.x)]
        shape = (-1,) + (1,) * (others.dim() - 1)
        with statistics_kept(model):
            pools = [torch.where(there.view(shape), pool, others) for pool in (self.known, self.unknown)]
            output = Output.of(model(torch.cat(pools)))
        with torch.autocast(step.y.device.type, enabled=False):
            known, unknown = _halves(output)
            hard = torch.stack([loss(known, labels) for loss in self.losses]).sum(0)
            each = hard + self.lam_n * acceptance(unknown) + self.lam_c * disagreement(unknown)
            return torch.where(there, each, 0).sum() / there.sum().clamp(min=1)


def disagreement(output: Output) -> Tensor:
    """L_cc = (1/C) Σ_k (p_k - q_k)² per sample (N,), between the softmax and the one-vs-all classifiers."""
    return (output.logits.softmax(1) - output.log_odds().sigmoid()).square().mean(1)


def openness(output: Output) -> Tensor:
    """(1/C) Σ_k log(1 - q_k) + H(p) per sample (N,): large where all reject it and the softmax is undecided."""
    entropy = -(output.logits.softmax(1) * output.logits.log_softmax(1)).sum(1)
    return entropy - acceptance(output)


def _features(output: Output) -> Tensor:
    if output.features is None:
        raise MedicError("CrossMatch needs the features of the backbone: return Output(logits, ova, features)")
    return output.features


def _halves(output: Output) -> tuple[Output, Output]:
    """The outputs of the first and of the last half of the samples."""
    half = len(output.logits) // 2
    return output.map(lambda part: part[:half]), output.map(lambda part: part[half:])
