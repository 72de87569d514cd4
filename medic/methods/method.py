"""A method: a value that says what to split, how to descend, and what to minimise."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from medic.objectives import Forward, Loss, Objective, Ova, ce, objective
from medic.strategies import Strategy
from medic.tasks import Grid
from medic.training import OptimizerName, Schedule

ObjectiveName = Literal["ce", "ce+ova", "ova"]


class Rate(NamedTuple):
    """A learning rate for each of DomainBed's two families of data."""

    small: float
    """For images of 32 pixels or fewer."""
    large: float

    def at(self, image_size: int) -> float:
        """The rate for images of this side."""
        return self.small if image_size <= 32 else self.large


@dataclass(frozen=True)
class Training:
    """How a method is trained unless told otherwise. None leaves the choice to the benchmark or the optimizer."""

    optimizer: OptimizerName = "sgd"
    lr: float | Rate | None = None
    inner_lr: float | Rate | Literal["lr"] | None = None
    """The rate of the inner steps: None for the strategy's own, "lr" for the same as the outer one."""
    momentum: float = 0.9
    weight_decay: float = 5e-4 / 9
    """The authors' 5e-4 beside a gradient summed over t = 9 tasks; here `p.grad` is their mean."""
    schedule: Schedule = "step"
    images: int = 144
    """Images per iteration, over all tasks."""


@dataclass(frozen=True)
class Method:
    """One system of the paper's tables. A run copies the grid and the strategy, which have state of their own."""

    name: str
    idea: str
    differs: str
    """What it differs in from plain training."""
    citation: str
    grid: Grid
    strategy: Strategy
    objective: ObjectiveName = "ce"
    forward: Forward = "step"
    training: Training = field(default_factory=Training)


def make_objective(name: ObjectiveName, ova_scale: float, forward: Forward) -> Objective:
    """The objective of a run: the losses named in `name`, joined by `+`."""
    losses: dict[str, Loss] = {"ce": ce, "ova": Ova(ova_scale)}
    return objective(*(losses[part] for part in name.split("+")), forward=forward)
