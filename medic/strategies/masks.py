"""Gradients that the tasks agree on: AND-mask and SAND-mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.strategies.base import Objective, Strategy, Update, accumulate, measured_call, summarise
from medic.tasks import Step
from medic.utils import distributed
from medic.utils.parts import hyperparameter, log10, uniform


@dataclass
class AndMask(Strategy):
    """AND-mask (Parascandolo et al. 2021): a coordinate moves if the signs of its task gradients agree.

    With g_i the gradient of task i, all at the same weights, a = |mean_i sign g_i| and M = [a ≥ τ], a tensor of
    parameters gets M · mean_i g_i / mean M. Three tasks have a = 1 or 1/3, so that every τ between gives the same mask.
    """

    tau: float = hyperparameter(1.0, most=1, search=uniform("tau", 0.5, 1))

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with the masked mean gradient."""
        measured = measured_call(model, steps, objective)
        tasks = [task for step in steps for task in step.tasks()]
        risks, gradients_by_task = [], []
        for task in tasks:
            risk = measured(task)
            gradients = torch.autograd.grad(risk.total, measured.adapted, allow_unused=True)
            distributed.all_reduce(gradients)
            risks.append(risk)
            gradients_by_task.append(gradients)
        accumulate(measured.adapted, [self._combined(column) for column in zip(*gradients_by_task, strict=True)])
        return summarise(tasks, risks)

    def _combined(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """Combine the gradients of one tensor over the tasks; None where no task depends on it."""
        reached = [gradient for gradient in gradients if gradient is not None]
        if not reached:
            return None
        like = reached[0]
        stacked = torch.stack([torch.zeros_like(like) if gradient is None else gradient for gradient in gradients])
        mask = self.mask(stacked).to(like)
        return mask * stacked.mean(0) / (1e-10 + mask.mean())

    def mask(self, gradients: Tensor) -> Tensor:
        """Return the mask of the coordinates from their gradients (tasks, …)."""
        return self.agreement(gradients) >= self.tau - 1e-6  # 1/3 + 1/3 + 1/3 may be less than 1

    @staticmethod
    def agreement(gradients: Tensor) -> Tensor:
        """Return |mean sign| over the tasks, from 0 to 1."""
        return gradients.sign().mean(0).abs()


@dataclass
class SandMask(AndMask):
    """SAND-mask (Shahtalebi et al. 2021): as AND-mask with M = max(0, tanh(k (a - τ) / v)), v the variance of g_i.

    At DomainBed's default τ = 1 the mask is 0 everywhere and nothing is learnt; our default is 0.5.
    """

    tau: float = hyperparameter(0.5, most=1, below=True, search=uniform("tau", 0, 1))
    k: float = hyperparameter(10.0, above=True, search=log10("k", -3, 5))

    def mask(self, gradients: Tensor) -> Tensor:
        """Return 1 where all gradients are equal, less where they differ."""
        surplus = self.agreement(gradients) - self.tau
        if len(gradients) == 1:
            return (surplus > 0).to(gradients)
        # Without variance the quotient is ±∞, whose tanh is ±1; 0/0, at the threshold itself, counts as 0.
        return (self.k * surplus / gradients.var(0)).tanh().clamp(min=0).nan_to_num(0.0)
