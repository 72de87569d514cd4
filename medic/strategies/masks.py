"""Gradients that the tasks agree on: AND-mask and SAND-mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic import distributed
from medic.errors import check_range
from medic.strategies.base import Objective, Stateless, Update, accumulate, summarise, trainable
from medic.tasks import Step


@dataclass
class AndMask(Stateless):
    """AND-mask (Parascandolo et al. 2021): a coordinate moves if the signs of its task gradients agree.

    With g_i the gradient of task i, all at the same weights, a = |mean_i sign g_i| and M = [a ≥ τ], a tensor of
    parameters gets M · mean_i g_i / mean M. Three tasks have a = 1 or 1/3, so that every τ between is alike.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_range("AND-mask", most=1, tau=self.tau)

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with what the tasks agree on."""
        parameters = list(trainable(model, objective).values())
        tasks = [task for step in steps for task in step.tasks()]
        risks, found = [], []
        for task in tasks:
            risk = objective(model, task)
            gradients = torch.autograd.grad(risk.total, parameters, allow_unused=True)
            distributed.all_reduce(gradients)
            risks.append(risk)
            found.append(gradients)
        accumulate(parameters, [self._combined(column) for column in zip(*found, strict=True)])
        return summarise(tasks, risks)

    def _combined(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """One tensor's gradient, from those of the tasks; None where no task reaches it."""
        reached = [gradient for gradient in gradients if gradient is not None]
        if not reached:
            return None
        like = reached[0]
        stacked = torch.stack([torch.zeros_like(like) if gradient is None else gradient for gradient in gradients])
        mask = self.mask(stacked).to(like)
        return mask * stacked.mean(0) / (1e-10 + mask.mean())

    def mask(self, gradients: Tensor) -> Tensor:
        """How much of every coordinate is kept, from the gradients (tasks, …)."""
        return self.agreement(gradients) >= self.tau - 1e-6  # 1/3 + 1/3 + 1/3 may be less than 1

    @staticmethod
    def agreement(gradients: Tensor) -> Tensor:
        """|mean sign| over the tasks, 0 to 1."""
        return gradients.sign().mean(0).abs()


@dataclass
class SandMask(AndMask):
    """SAND-mask (Shahtalebi et al. 2021): as AND-mask with M = max(0, tanh(k (a - τ) / v)), v the variance of g_i.

    At the τ = 1 of DomainBed's defaults the mask is 0 everywhere and nothing is learnt; ours is 0.5.
    """

    tau: float = 0.5
    k: float = 10.0

    def __post_init__(self) -> None:
        check_range("SAND-mask", most=1, below=True, tau=self.tau)  # at 1 it would mask everything
        check_range("SAND-mask", above=True, k=self.k)

    def mask(self, gradients: Tensor) -> Tensor:
        """1 where all gradients are equal, less where they differ."""
        surplus = self.agreement(gradients) - self.tau
        if len(gradients) == 1:
            return (surplus > 0).to(gradients)
        # Without spread the quotient is ±∞, whose tanh is ±1; 0/0, at the threshold itself, is no agreement.
        return (self.k * surplus / gradients.var(0)).tanh().clamp(min=0).nan_to_num(0.0)
