"""Base classes and helpers for strategies: calling convention, adapted parameters and gradient accumulation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from medic.errors import MedicError, check_choice, counted, first_line
from medic.objectives import Risk
from medic.objectives import objective as make_objective
from medic.tasks import Step
from medic.utils.parts import POSITIVE, Limits, check_hyperparameters, check_range

Objective = Callable[[nn.Module, Step], Risk]
Gradients = list[Tensor | None]
"""One gradient per trainable parameter, or None where the loss does not depend on the parameter."""

BnBuffers = Literal["keep", "interpolate", "restore"]


@dataclass(frozen=True, repr=False)
class Update:
    """The results of an iteration: task risks of shape (t,), including penalties, and the logits of all samples."""

    risks: Tensor
    logits: Tensor
    y: Tensor
    domain: Tensor | None
    summary: Tensor | None = None
    """Summary of the iteration for the grid's sampler, or None if the sampler does not learn."""

    @property
    def loss(self) -> Tensor:
        """The mean task risk. Each risk is measured at the weights of its own step."""
        return self.risks.mean()

    def __repr__(self) -> str:
        samples, classes = self.logits.shape
        return (
            f"Update(loss {float(self.loss):.4g} over {counted(len(self.risks), 'task')}, logits {samples} × {classes})"
        )


class Strategy:
    """A replacement for `loss.backward()`, which adds to `p.grad` and leaves the weights unchanged.

    Subclasses are dataclasses that declare their hyperparameters as fields. By default, a strategy keeps no state
    between iterations.
    """

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Compute gradients from the steps of one iteration."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later updates depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""


@dataclass
class InnerLoop(Strategy):
    """Base class for strategies with inner steps.

    `lr` is the inner learning rate α. `bn_buffers` sets what happens to batch-norm statistics after the inner steps:
    `keep` them (as in the authors' code), `interpolate` them by the fraction `bn_rate` (as in Fish), or `restore` them.
    """

    lr: float = 1e-2
    _: KW_ONLY
    bn_buffers: BnBuffers = "keep"
    bn_rate: float = 0.5

    def __post_init__(self) -> None:
        check_choice("bn_buffers", self.bn_buffers, get_args(BnBuffers))
        check_range("the inner steps", POSITIVE, lr=self.lr)
        check_range("the inner steps", Limits(0, 1), bn_rate=self.bn_rate)
        super().__post_init__()

    def check_steps(self, count: int) -> None:
        """Raise an error if the strategy cannot use this number of steps. By default, any number is valid."""

    def interpolation_factor(self, rate: float, tasks: int) -> float:
        """Return the fraction of the inner displacement covered by one outer SGD step with this learning rate."""
        return min(1.0, rate / (self.lr * tasks))


class Measured(nn.Module):
    """A module that combines a model with its objective and maps a step to its risk.

    `adapted` lists the parameters of the model and the objective that a strategy adapts, and `names` their names in
    this module. Parameters of auxiliary networks are excluded because they have their own optimizers.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective: Objective = make_objective(objective) if isinstance(objective, _Loss) else objective
        excluded = {p for network in getattr(objective, "auxiliary", ()) for p in network.parameters()}
        named = {name: p for name, p in self.named_parameters() if p.requires_grad and p not in excluded}
        if not named:
            raise MedicError("the model has no trainable parameters: set requires_grad=True")
        self.names, self.adapted = list(named), list(named.values())

    def forward(self, step: Step) -> Risk:
        """Compute the risk of a step."""
        try:
            risk = self.objective(self.model, step)
        except (TypeError, AttributeError) as error:
            if isinstance(self.objective, nn.Module):
                raise
            raise MedicError(f"{self._unlike_an_objective('failed')} ({first_line(error)})") from error
        if not isinstance(risk, Risk):
            raise MedicError(self._unlike_an_objective(f"returned a {type(risk).__name__}"))
        return risk

    def _unlike_an_objective(self, what: str) -> str:
        name = getattr(self.objective, "__name__", type(self.objective).__name__)
        return f"objective {name} {what} when called with a model and a step: pass medic.objective(loss)"


def measured_call(model: nn.Module, steps: Sequence[Step], objective: Objective) -> Measured:
    """Check the arguments of a strategy call, and combine the model with its objective."""
    _check_call(model, steps, objective)
    return Measured(model, objective)


def _check_call(model: object, steps: object, objective: object) -> None:
    """Raise an error if an argument has the wrong type, for example because the order is wrong."""
    way = "call strategy(model, grid(x, y, domain), objective)"
    if not isinstance(model, nn.Module):
        raise MedicError(f"model must be a torch.nn.Module, got {type(model).__name__}: {way}")
    if not isinstance(steps, Sequence) or not all(isinstance(step, Step) for step in steps):
        inside = {type(step).__name__ for step in steps} if isinstance(steps, Sequence) else set()
        of = f" of {', '.join(sorted(inside))}" if inside else ""
        raise MedicError(f"steps must be a list of steps, got {type(steps).__name__}{of}: {way}")
    if not steps:
        raise MedicError(f"a strategy requires at least one step: {way}")
    if isinstance(objective, type) or not callable(objective):
        raise MedicError(f"objective {objective!r} has type {type(objective).__name__}: pass medic.objective(medic.ce)")


def count_tasks(steps: Sequence[Step]) -> int:
    """Return the total number of tasks, t, across all steps."""
    return sum(len(step.sizes) for step in steps)


def accumulate(parameters: Sequence[nn.Parameter], gradients: Gradients, scale: float = 1.0) -> None:
    """Add `scale` times the gradients to `p.grad`, as `backward` would."""
    reached = [(p, g.detach()) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    if not reached:
        return
    scaled = torch._foreach_mul([gradient for _, gradient in reached], scale)
    for (parameter, _), gradient in zip(reached, scaled, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient.stride() == parameter.stride():
            parameter.grad = gradient
        else:  # fused optimizers require gradients in the memory order of the weights
            parameter.grad = torch.empty_like(parameter).copy_(gradient)


def summarise(steps: Sequence[Step], risks: Sequence[Risk]) -> Update:
    """Combine the risks and logits of all steps into an `Update`."""
    domains = [step.domain for step in steps if step.domain is not None]
    return Update(
        torch.cat([(risk.tasks if risk.penalty is None else risk.tasks + risk.penalty).detach() for risk in risks]),
        torch.cat([risk.logits for risk in risks]),
        torch.cat([step.y for step in steps]),
        torch.cat(domains) if len(domains) == len(steps) else None,
    )


@contextmanager
def weights_restored(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Restore the weights exactly on exit. Yields copies of the original weights."""
    before = [torch.empty_like(parameter) for parameter in parameters]
    with torch.no_grad():
        torch._foreach_copy_(before, list(parameters))
    try:
        yield before
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), before)
        torch.clear_autocast_cache()


@contextmanager
def buffers(model: nn.Module, policy: BnBuffers, rate: float) -> Iterator[None]:
    """Apply a policy to the buffers (batch-norm statistics) that change inside the context.

    `keep` keeps the latest values, `restore` restores the original values, and `interpolate` moves the original values
    towards the latest ones by the fraction `rate`. Integer counters cannot be interpolated and keep their latest value.
    """
    before = [] if policy == "keep" else [(buffer, buffer.clone()) for buffer in model.buffers()]
    fraction = 0.0 if policy == "restore" else rate
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in before:
                if buffer.is_floating_point() or policy == "restore":
                    buffer.copy_(old.lerp(buffer, fraction) if fraction else old)
