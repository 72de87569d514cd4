"""What all strategies share: the contract, the parameters they read, and what they leave behind."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_choice, check_range, counted
from medic.objectives import Risk
from medic.tasks import Step

Objective = Callable[[nn.Module, Step], Risk]
Gradients = list[Tensor | None]
"""One gradient per trainable parameter, None where the loss does not reach it."""

BnBuffers = Literal["keep", "interpolate", "restore"]


@dataclass(frozen=True, repr=False)
class Update:
    """What a strategy saw while it filled `p.grad`: the risks (t,) of all tasks with penalties, and every sample."""

    risks: Tensor
    logits: Tensor
    y: Tensor
    domain: Tensor | None

    @property
    def loss(self) -> Tensor:
        """The mean risk of the tasks, each at the weights it was met with."""
        return self.risks.mean()

    def __repr__(self) -> str:
        samples, classes = self.logits.shape
        return (
            f"Update(loss {float(self.loss):.4g} of {counted(len(self.risks), 'task')}, logits {samples} × {classes})"
        )


class Strategy(Protocol):
    """A drop-in for `loss.backward()`: adds to `p.grad` and leaves the weights where they were."""

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Turn the steps of one iteration into gradients."""

    def state_dict(self) -> dict[str, Any]:
        """All that later updates depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""


class Stateless:
    """A strategy that carries nothing from one iteration to the next."""

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """No state."""


@dataclass
class InnerLoop:
    """What strategies with inner steps share: the inner rate α, and what becomes of batch-norm statistics.

    `bn_buffers` is `keep` (as the authors do), `interpolate` (go the share `bn_rate` of the way, as Fish) or `restore`.
    """

    lr: float = 1e-2
    _: KW_ONLY
    bn_buffers: BnBuffers = "keep"
    bn_rate: float = 0.5

    def __post_init__(self) -> None:
        check_choice("bn_buffers", self.bn_buffers, get_args(BnBuffers))
        check_range("the inner steps", above=True, lr=self.lr)
        check_range("the inner steps", most=1, bn_rate=self.bn_rate)

    def check_steps(self, count: int) -> None:
        """Refuse a number of steps that the strategy cannot work with; any will do unless it says otherwise."""

    def share(self, rate: float, tasks: int) -> float:
        """How far an outer step of plain SGD goes on the way that the inner steps went: here lr Σg, there Σg / t."""
        return min(1.0, rate / (self.lr * tasks))


class Measured(nn.Module):
    """A model with its objective: what a strategy adapts the parameters of."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, step: Step) -> Risk:
        """Measure a step."""
        return self.objective(self.model, step)


def trainable(model: nn.Module, objective: Objective) -> dict[str, nn.Parameter]:
    """The parameters that a strategy adapts, by their names in `Measured`; an objective can have some of its own.

    Those of players, which have optimizers of their own, are not among them.
    """
    played = {p for player in getattr(objective, "players", ()) for p in player.parameters()}
    named = Measured(model, objective).named_parameters()
    parameters = {name: p for name, p in named if p.requires_grad and p not in played}
    if not parameters:
        raise MedicError("the model has no parameter that requires a gradient")
    return parameters


def count_tasks(steps: Sequence[Step]) -> int:
    """The number of tasks t in all steps."""
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
        else:  # fused optimizers take gradients in the memory order of the weights alone
            parameter.grad = torch.empty_like(parameter).copy_(gradient)


def summarise(steps: Sequence[Step], risks: Sequence[Risk]) -> Update:
    """Collect what was seen of the forwarded steps."""
    domains = [step.domain for step in steps if step.domain is not None]
    return Update(
        torch.cat([(risk.tasks if risk.penalty is None else risk.tasks + risk.penalty).detach() for risk in risks]),
        torch.cat([risk.logits for risk in risks]),
        torch.cat([step.y for step in steps]),
        torch.cat(domains) if len(domains) == len(steps) else None,
    )


@contextmanager
def weights_restored(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Put the weights back, bit by bit, whatever happens inside; gives their values from before."""
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
    """What becomes of the buffers (batch-norm statistics) that the forward passes inside move.

    `keep` leaves them as the last pass did, `restore` puts them back, and `interpolate` goes the share `rate` of the
    way; counters, which are integers, cannot go part of a way and are kept.
    """
    before = [] if policy == "keep" else [(buffer, buffer.clone()) for buffer in model.buffers()]
    share = 0.0 if policy == "restore" else rate
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, old in before:
                if buffer.is_floating_point() or policy == "restore":
                    buffer.copy_(old.lerp(buffer, share) if share else old)
