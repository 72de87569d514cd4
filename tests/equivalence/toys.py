"""Quadratic toys: a scalar θ, and tasks whose mean loss is k (θ - c)² / 2."""

import torch
from torch import Tensor, nn

from medic.objectives import Risk
from medic.tasks import Step


class Scalar(nn.Module):
    """One parameter θ; the output of an input c is θ - c."""

    def __init__(self, theta: float = 0.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta - x


def quadratic(model: nn.Module, step: Step) -> Risk:
    """x holds a centre c and a curvature k per sample; one risk per task."""
    centre, curvature = step.x.unbind(1)
    return Risk(step.means(curvature * model(centre) ** 2 / 2), None, torch.zeros(len(step.x), 1))


def step(*tasks: tuple[float, float]) -> Step:
    """A step of tasks (centre, curvature), one sample each."""
    x = torch.tensor(tasks, dtype=torch.float64)
    return Step(x, torch.zeros(len(tasks), dtype=torch.long), (1,) * len(tasks))


def gradient(strategy, steps, theta: float = 0.0) -> float:
    """What a strategy puts into θ.grad, times the number of tasks: the sums that closed forms are given as."""
    model = Scalar(theta)
    strategy(model, steps, quadratic)
    assert model.theta.item() == theta, "the weights must not move"
    return model.theta.grad.item() * sum(len(s.sizes) for s in steps)
