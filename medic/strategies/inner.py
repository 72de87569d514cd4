"""The inner loop: a sequence of steps on changing weights, in first or second order."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medic.errors import MedicError, check_choice
from medic.objectives import Risk
from medic.strategies.base import Gradients, InnerLoop, Measured, accumulate, weights_restored
from medic.strategies.optimizers import load_optimizer, optimizer_state
from medic.strategies.second_order import CheapSecondDerivatives
from medic.tasks import Step
from medic.utils import distributed

Move = Callable[[Sequence[nn.Parameter], Gradients], None]
"""Updates the weights in place with the gradients of one inner step."""

InnerOptimizer = Literal["sgd", "adam"] | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(lr: float) -> Move:
    """Return a function that takes one step of plain gradient descent."""

    @torch.no_grad()
    def move(parameters: Sequence[nn.Parameter], gradients: Gradients) -> None:
        reached = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        torch._foreach_add_([p for p, _ in reached], [g for _, g in reached], alpha=-lr)

    return move


def stateful(optimizer: torch.optim.Optimizer) -> Move:
    """Return a function that takes one step with a torch optimizer and leaves `p.grad` unchanged."""

    def move(parameters: Sequence[nn.Parameter], gradients: Gradients) -> None:
        kept = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    return move


def check_inner(inner: InnerOptimizer, decay: float | None) -> None:
    """Raise an error for an unknown inner optimizer, or for weight decay with an optimizer other than Adam."""
    if not callable(inner):
        check_choice("inner optimizer", inner, ["sgd", "adam"])
    if decay is not None and inner != "adam":
        raise MedicError("decay requires inner='adam': omit decay, or use inner='adam'")


def make_optimizer(
    inner: InnerOptimizer, parameters: Sequence[nn.Parameter], lr: float, decay: float | None = None
) -> torch.optim.Optimizer:
    """Create the inner optimizer for some parameters: Adam, or the result of a factory."""
    if callable(inner):
        return inner(list(parameters))
    # `capturable` keeps the step counters on the GPU, which avoids synchronisation.
    return torch.optim.Adam(list(parameters), lr=lr, weight_decay=decay or 0.0, capturable=parameters[0].is_cuda)


class StatefulInnerLoop(InnerLoop):
    """An inner loop that keeps its optimizer and the optimizer state as long as the parameters stay the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._optimizer: torch.optim.Optimizer | None = None
        self._loaded: dict[str, Any] | None = None

    def kept_optimizer(
        self, inner: InnerOptimizer, parameters: Sequence[nn.Parameter], decay: float | None
    ) -> torch.optim.Optimizer:
        """Return the optimizer for these parameters. Creates a new one if the parameters have changed."""
        held = self._optimizer.param_groups[0]["params"] if self._optimizer else []
        if self._optimizer is None or [id(p) for p in held] != [id(p) for p in parameters]:
            self._optimizer = make_optimizer(inner, parameters, self.lr, decay)
            if self._loaded is not None and self._loaded.get("parameters", len(parameters)) == len(parameters):
                load_optimizer(self._optimizer, self._loaded)
            self._loaded = None
        return self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimizer, or None before the optimizer exists."""
        if self._optimizer is None:
            return {"inner": self._loaded}
        count = len(self._optimizer.param_groups[0]["params"])
        return {"inner": {**optimizer_state(self._optimizer), "parameters": count}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._optimizer, self._loaded = None, state["inner"]


def first_order(
    measured: Measured, steps: Sequence[Step], weights: Sequence[float], move: Move | None, to_end: bool = False
) -> tuple[Gradients, list[Risk]]:
    """Sum the weighted gradients of the steps, each computed at the weights reached by the previous steps.

    Returns Σ_i w_i g_i(θ_i) and the risks. The function sums gradients instead of recovering them from the
    displacement, because (θ - θ̂) / α suffers from cancellation in float32. It stops moving the weights after the
    second-to-last step, or after the last step with `to_end`. Without `move`, the weights do not change.
    """
    parameters = measured.adapted
    total: Gradients = [None] * len(parameters)
    risks = []
    for index, (step, weight) in enumerate(zip(steps, weights, strict=True)):
        risk: Risk = measured(step)
        gradients: Gradients = list(torch.autograd.grad(risk.total, parameters, allow_unused=True))
        distributed.all_reduce(gradients)
        risks.append(risk)
        total = _add(total, gradients, weight)
        if move is not None and (to_end or index + 1 < len(steps)):
            move(parameters, gradients)
            torch.clear_autocast_cache()  # autocast must not reuse casts of the old weights
    return total, risks


def displace(measured: Measured, steps: Sequence[Step], move: Move, scale: float = 1.0) -> list[Risk]:
    """Take all steps, restore the weights, and add `scale` times the displacement θ - θ̂ to `p.grad`."""
    parameters = measured.adapted
    with weights_restored(parameters) as before:
        reached, risks = first_order(measured, steps, [1.0] * len(steps), move, to_end=True)
        displacement = torch._foreach_sub(before, [parameter.detach() for parameter in parameters])
    # Parameters without a gradient get no displacement, so that the outer optimizer skips them.
    accumulate(parameters, [d if g is not None else None for d, g in zip(displacement, reached, strict=True)], scale)
    return risks


def second_order(
    measured: Measured, steps: Sequence[Step], weights: Sequence[float], lr: float
) -> tuple[Gradients, list[Risk]]:
    """Differentiate Σ_i w_i l_i(θ_i) with respect to θ, through every update θ_{i+1} = θ_i - lr · l_i'(θ_i)."""
    fast: list[Tensor] = list(measured.adapted)
    risks: list[Risk] = []
    for index, step in enumerate(steps):
        with CheapSecondDerivatives():
            risk: Risk = functional_call(measured, dict(zip(measured.names, fast, strict=True)), (step,))
        risks.append(risk)
        if index + 1 < len(steps):
            gradients = torch.autograd.grad(risk.total, fast, create_graph=True, allow_unused=True)
            fast = [
                value if gradient is None else value - lr * distributed.all_reduced(gradient)
                for value, gradient in zip(fast, gradients, strict=True)
            ]
    total = torch.stack([weight * risk.total for risk, weight in zip(risks, weights, strict=True) if weight]).sum()
    meta_gradients: Gradients = list(torch.autograd.grad(total, measured.adapted, allow_unused=True))
    distributed.all_reduce(meta_gradients)
    return meta_gradients, risks


def _add(total: Gradients, gradients: Gradients, weight: float) -> Gradients:
    """Return `total + weight · gradients`. Existing totals are updated in place."""
    if weight == 0:
        return total
    both = [(t, g) for t, g in zip(total, gradients, strict=True) if t is not None and g is not None]
    if both:
        torch._foreach_add_([t for t, _ in both], [g for _, g in both], alpha=weight)
    fresh = [(index, g) for index, g in enumerate(gradients) if g is not None and total[index] is None]
    if fresh:
        scaled = torch._foreach_mul([gradient for _, gradient in fresh], weight)
        for (index, _), gradient in zip(fresh, scaled, strict=True):
            total[index] = gradient
    return total
