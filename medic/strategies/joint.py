"""Plain training: every task at the same weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from medic.strategies.base import Objective, Stateless, Update, accumulate, count_tasks, summarise, trainable
from medic.strategies.inner import first_order
from medic.tasks import Step


@dataclass
class Joint(Stateless):
    """The gradient of the mean task risk, as `loss.backward()` computes it."""

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with (1/t) Σ_i l_i'(θ)."""
        parameters = list(trainable(model, objective).values())
        gradients, risks = first_order(model, steps, objective, parameters, [1.0] * len(steps), move=None)
        accumulate(parameters, gradients, 1 / count_tasks(steps))
        return summarise(steps, risks)
