"""Plain training: all tasks are evaluated at the same weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from medic.strategies.base import Objective, Strategy, Update, accumulate, count_tasks, measured_call, summarise
from medic.strategies.inner import first_order
from medic.tasks import Step


@dataclass
class Joint(Strategy):
    """The gradient of the mean task risk, equal to `loss.backward()`."""

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with (1/t) Σ_i l_i'(θ)."""
        measured = measured_call(model, steps, objective)
        gradients, risks = first_order(measured, steps, [1.0] * len(steps), move=None)
        accumulate(measured.adapted, gradients, 1 / count_tasks(steps))
        return summarise(steps, risks)
