"""A chain of steps whose gradients are matched pairwise: Reptile, Fish, MEDIC++, MAML and Arith."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from medic.errors import MedicError, check_choice
from medic.strategies.base import (
    Objective,
    Update,
    accumulate,
    buffers,
    count_tasks,
    measured_call,
    summarise,
    weights_restored,
)
from medic.strategies.inner import (
    InnerOptimizer,
    StatefulInnerLoop,
    check_inner,
    displace,
    first_order,
    second_order,
    sgd,
    stateful,
)
from medic.tasks import Step
from medic.utils.parts import hyperparameter

Weighting = Literal["equal", "last", "arithmetic"]


@dataclass
class MultiStep(StatefulInnerLoop):
    """A chain of inner steps whose weighted gradient sum goes to the outer optimizer.

    `lr` is the inner learning rate α. Each inner step minimises the sum of its task risks. `weights` is one number per
    step, or `equal` (Reptile, Fish, MEDIC++), `last` (MAML: only the last step, scaled by t / m_n), or `arithmetic`
    (Arith: 2 (n + 1 - i) / (n + 1)). `second_order=True` also differentiates through the inner steps.

    An `inner` optimizer other than plain SGD keeps its state between iterations. Its steps are not multiples of the
    gradients, so `p.grad` is then the displacement θ - θ̂. Outer SGD with learning rate ε moves to θ + ε (θ̂ - θ).
    """

    weights: Weighting | Sequence[float] = "equal"
    second_order: bool = False
    inner: InnerOptimizer = "sgd"
    decay: float | None = hyperparameter(None)
    """Weight decay for the inner Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.decay)
        if isinstance(self.weights, str):
            check_choice("step weights", self.weights, ["equal", "last", "arithmetic"])
        if self.inner != "sgd" and (self.second_order or self.weights != "equal"):
            raise MedicError("a stateful inner optimizer requires weights='equal' and second_order=False")

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with (1/t) Σ_i w_i l_i'(θ_i), or with θ - θ̂ for a stateful inner optimizer."""
        measured = measured_call(model, steps, objective)
        with buffers(model, self.bn_buffers, self.bn_rate):
            if self.inner != "sgd":
                move = stateful(self.kept_optimizer(self.inner, measured.adapted, self.decay))
                return summarise(steps, displace(measured, steps, move))
            weights = self.step_weights([len(step.sizes) for step in steps])
            if self.second_order:
                gradients, risks = second_order(measured, steps, weights, self.lr)
            else:
                with weights_restored(measured.adapted):
                    gradients, risks = first_order(measured, steps, weights, sgd(self.lr))
            accumulate(measured.adapted, gradients, 1 / count_tasks(steps))
        return summarise(steps, risks)

    def interpolation_factor(self, rate: float, tasks: int) -> float:
        """Return the fraction of the inner displacement covered by one outer step.

        For a stateful inner optimizer, this is the outer learning rate, because `p.grad` is a displacement.
        """
        return super().interpolation_factor(rate, tasks) if self.inner == "sgd" else min(1.0, rate)

    def step_weights(self, sizes: Sequence[int]) -> list[float]:
        """Return the gradient weight of each step. `sizes`: number of tasks in each step."""
        n, tasks = len(sizes), sum(sizes)
        if self.weights == "equal":
            return [1.0] * n
        if self.weights == "last":
            return [0.0] * (n - 1) + [tasks / sizes[-1]]
        if self.weights == "arithmetic":
            return [2 * (n - i) / (n + 1) for i in range(n)]
        weights = [float(weight) for weight in self.weights]
        if len(weights) != n:
            raise MedicError(f"got {len(weights)} step weights for {n} steps: pass one weight per step")
        return weights
