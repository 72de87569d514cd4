"""A chain of steps whose gradients are matched pairwise: Reptile, Fish, MEDIC++, MAML, Arith."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from medic.errors import MedicError, check_choice
from medic.objectives import Risk
from medic.strategies.base import (
    Gradients,
    InnerLoop,
    Objective,
    Update,
    accumulate,
    buffers,
    count_tasks,
    summarise,
    trainable,
    weights_restored,
)
from medic.strategies.inner import InnerOptimizer, Kept, check_inner, first_order, second_order, sgd, stateful
from medic.tasks import Step

Weighting = Literal["equal", "last", "arithmetic"]


@dataclass
class MultiStep(InnerLoop):
    """Descend the steps one after the other and give the weighted sum of their gradients to the outer optimizer.

    `lr` is the inner rate α; an inner step descends the sum of its tasks' risks. `weights` are one number per
    step, or `equal` (Reptile, Fish, MEDIC++), `last` (MAML: only the last step, scaled by t / m_n), or
    `arithmetic` (Arith: 2 (n + 1 - i) / (n + 1)). To second order the inner steps are differentiated too.

    An `inner` optimizer other than plain SGD keeps its state between iterations. Its steps are not multiples of the
    gradients, so `p.grad` is then how far the weights went, θ - θ̂: an outer SGD of rate ε makes θ + ε (θ̂ - θ).
    """

    weights: Weighting | Sequence[float] = "equal"
    second_order: bool = False
    inner: InnerOptimizer = "sgd"
    decay: float | None = None
    """The weight decay of an inner Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.decay)
        if isinstance(self.weights, str):
            check_choice("step weights", self.weights, ["equal", "last", "arithmetic"])
        if self.inner != "sgd" and (self.second_order or self.weights != "equal"):
            raise MedicError("a stateful inner optimizer goes with equal weights to first order")
        self._kept = Kept()

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with (1/t) Σ_i w_i l_i'(θ_i), or θ - θ̂ for a stateful inner optimizer."""
        with buffers(model, self.bn_buffers, self.bn_rate):
            if self.inner != "sgd":
                risks = self._interpolate(model, steps, objective)
            else:
                gradients, risks = self._gradients(model, steps, objective)
                accumulate(list(trainable(model, objective).values()), gradients, 1 / count_tasks(steps))
        return summarise(steps, risks)

    def _gradients(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> tuple[Gradients, list[Risk]]:
        weights = self.step_weights([len(step.sizes) for step in steps])
        if self.second_order:
            return second_order(model, steps, objective, weights, self.lr)
        with weights_restored(list(trainable(model, objective).values())):
            return first_order(model, steps, objective, weights, sgd(self.lr))

    def _interpolate(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> list[Risk]:
        parameters = list(trainable(model, objective).values())
        move = stateful(self._kept.get(self.inner, parameters, self.lr, self.decay))
        with weights_restored(parameters) as before:
            reached, risks = first_order(model, steps, objective, [1.0] * len(steps), move, to_end=True)
            displacement = torch._foreach_sub(before, [parameter.detach() for parameter in parameters])
        # A parameter that no gradient reached gets none, so that the outer optimizer leaves it alone as well.
        accumulate(parameters, [d if g is not None else None for d, g in zip(displacement, reached, strict=True)])
        return risks

    def share(self, rate: float, tasks: int) -> float:
        """The outer rate itself, where `p.grad` is how far the weights went."""
        return super().share(rate, tasks) if self.inner == "sgd" else min(1.0, rate)

    def step_weights(self, sizes: Sequence[int]) -> list[float]:
        """The weight of each step's gradient, for steps of `sizes` tasks."""
        n, tasks = len(sizes), sum(sizes)
        if self.weights == "equal":
            return [1.0] * n
        if self.weights == "last":
            return [0.0] * (n - 1) + [tasks / sizes[-1]]
        if self.weights == "arithmetic":
            return [2 * (n - i) / (n + 1) for i in range(n)]
        weights = [float(weight) for weight in self.weights]
        if len(weights) != n:
            raise MedicError(f"{len(weights)} step weights for {n} steps: give one per step")
        return weights

    def state_dict(self) -> dict[str, Any]:
        """The state of the inner optimizer."""
        return {"inner": self._kept.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""
        self._kept.load_state_dict(state["inner"])
