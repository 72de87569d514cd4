"""An objective: one forward pass of a step → one risk per task, plus penalties over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_choice
from medic.outputs import Output
from medic.tasks import Step

Loss = Callable[[Output, Tensor], Tensor]
"""Maps the outputs of N samples and their classes (N,) to one loss per sample (N,)."""

Penalty = Callable[[Tensor, Output, Step], Tensor]
"""Maps the risks of a step's tasks (m,), the outputs and the step to a scalar, added to the mean risk."""

Forward = Literal["step", "task"]


@dataclass(frozen=True)
class Risk:
    """What an objective found in one step."""

    tasks: Tensor
    """The mean loss of each task (m,)."""
    penalty: Tensor | None
    """A scalar to be added to the mean of the task risks."""
    logits: Tensor
    """The close-set logits (N, C), detached."""

    @property
    def total(self) -> Tensor:
        """The loss that an inner step descends: the sum of the task risks, the penalty counted once per task."""
        total = self.tasks.sum()
        return total if self.penalty is None else total + len(self.tasks) * self.penalty


@dataclass(frozen=True)
class Objective:
    """The sum of some losses, averaged per task, with some penalties.

    `forward="step"` passes all tasks of a step through the model as one batch, so that they share batch-norm
    statistics; `"task"` passes each by itself.
    """

    losses: tuple[Loss, ...]
    penalties: tuple[Penalty, ...] = ()
    forward: Forward = "step"

    def __post_init__(self) -> None:
        if not self.losses:
            raise MedicError("an objective needs a loss: objective(ce), objective(ce, ova)")
        check_choice("forward", self.forward, get_args(Forward))

    def __call__(self, model: nn.Module, step: Step) -> Risk:
        """Forward the step and measure it."""
        if self.forward == "step":
            output = Output.of(model(step.x))
        else:
            output = Output.cat([Output.of(model(task.x)) for task in step.tasks()])
        loss = torch.stack([loss(output, step.y) for loss in self.losses]).sum(0)
        tasks = step.means(loss)
        penalties = [penalty(tasks, output, step) for penalty in self.penalties]
        return Risk(tasks, torch.stack(penalties).sum() if penalties else None, output.logits.detach())


def objective(*losses: Loss, penalties: Sequence[Penalty] = (), forward: Forward = "step") -> Objective:
    """Compose losses and penalties: `objective(ce)`, `objective(ce, ova)`."""
    return Objective(losses, tuple(penalties), forward)
