"""AND-mask and SAND-mask, which keep the gradients that the tasks agree on."""

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
    """AND-mask (Parascandolo et al. 2021): coordinates change only if the signs of their task gradients agree.

    Let g_i be the gradient of task i (all at the same weights), a = |mean_i sign g_i| the agreement, and M = [a ≥ τ]
    the mask. Each parameter tensor receives the gradient M · mean_i g_i / mean M. With three tasks, a is 1 or 1/3, so
    all values of τ in between produce the same mask.
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
        """Combine the task gradients of one parameter tensor. Returns None if no task depends on the tensor."""
        reached = [gradient for gradient in gradients if gradient is not None]
        if not reached:
            return None
        like = reached[0]
        stacked = torch.stack([torch.zeros_like(like) if gradient is None else gradient for gradient in gradients])
        mask = self.mask(stacked).to(like)
        return mask * stacked.mean(0) / (1e-10 + mask.mean())

    def mask(self, gradients: Tensor) -> Tensor:
        """Return the mask for a parameter tensor, given its gradients of shape (tasks, …)."""
        return self.agreement(gradients) >= self.tau - 1e-6  # 1/3 + 1/3 + 1/3 may be less than 1

    @staticmethod
    def agreement(gradients: Tensor) -> Tensor:
        """Return |mean sign| over the tasks, a value from 0 to 1 per coordinate."""
        return gradients.sign().mean(0).abs()


@dataclass
class SandMask(AndMask):
    """SAND-mask (Shahtalebi et al. 2021): AND-mask with M = max(0, tanh(k (a - τ) / v)), with v the variance of g_i.

    The default τ is 0.5. With DomainBed's default, τ = 1, the mask is 0 everywhere and the model learns nothing.
    """

    tau: float = hyperparameter(0.5, most=1, below=True, search=uniform("tau", 0, 1))
    k: float = hyperparameter(10.0, above=True, search=log10("k", -3, 5))

    def mask(self, gradients: Tensor) -> Tensor:
        """Return a mask of 1 where all gradients are equal, and less where they differ."""
        surplus = self.agreement(gradients) - self.tau
        if len(gradients) == 1:
            return (surplus > 0).to(gradients)
        # With zero variance, the quotient is ±∞ and its tanh ±1. At the threshold it is 0/0, which counts as 0.
        return (self.k * surplus / gradients.var(0)).tanh().clamp(min=0).nan_to_num(0.0)
