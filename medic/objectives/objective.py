"""An objective: one forward pass of a step → one risk per task, plus penalties over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_choice
from medic.objectives.player import Player
from medic.outputs import Output
from medic.pixels import denormalised, normalised
from medic.tasks import Step

Loss = Callable[[Output, Tensor], Tensor]
"""Maps the outputs of N samples and their classes (N,) to one loss per sample (N,)."""

PenaltyFunction = Callable[[Tensor, Output, Step], Tensor]
"""Maps the risks of a step's tasks (m,), the outputs and the step to a scalar, added to the mean risk."""

Change = Callable[[nn.Module, Output, Step], Output]
"""Replaces the outputs of a model for a step by others, which the losses then see."""

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

    def plus(self, penalty: Tensor) -> "Risk":
        """The same with another penalty beside what there is."""
        return replace(self, penalty=penalty if self.penalty is None else self.penalty + penalty)


class Parts(TypedDict, total=False):
    """What any objective may be made of beside its losses; see `Objective`."""

    penalties: Sequence[PenaltyFunction]
    forward: Forward
    change: Change | None


@dataclass(frozen=True)
class Setup:
    """What an objective is prepared for: what training sees at a time, and what inputs are.

    Inputs (N, *shape) are pixels in [0, 1] from which `mean` was taken and which were divided by `std`, per channel.
    """

    tasks: int = 1
    """The tasks of a step, of the largest one."""
    images: int = 1
    """The images of a step, of the largest one."""
    epoch: int = 1
    """The iterations in which as many images are drawn as there are to train on."""
    shape: tuple[int, ...] = (3, 32, 32)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Inputs (N, C, H, W) as pixels in [0, 1]."""
        return denormalised(inputs, self.mean, self.std)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] (N, C, H, W) as inputs."""
        return normalised(pixels, self.mean, self.std)


class Penalty(nn.Module):
    """A penalty with a memory, in its buffers, or with weights of its own, in its parameters.

    Its numbers are the arguments it is made with. Plain functions of the same signature serve as well.
    """

    ordered = False
    """Whether it remembers every task by its position, so that an iteration must be one step in the same order."""
    rate = 1.0
    """The learning rate of its parameters relative to the backbone's."""

    compares = False
    """Whether it compares the tasks of a step, so that there must be two."""
    linear = False
    """Whether it takes logits to be linear in the features."""
    ova = False
    """Whether it is about one-vs-all outputs."""
    samples = 1
    """How many samples a task must have at the least."""
    inside = False
    """Whether it looks at images or inside the backbone, which then cannot be compiled or frozen."""
    capturable = True
    """Whether a CUDA graph can hold it: it asks the device for no value, and copies none there."""

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make what it needs for a model and steps like these."""

    @property
    def restart(self) -> int | None:
        """The step before which the optimizer's memory of earlier ones is dropped, because the risk is then another."""
        return None

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """The penalty of a step: see `PenaltyFunction`."""
        raise NotImplementedError


class Objective(nn.Module):
    """The sum of some losses, averaged per task, with some penalties.

    `forward="step"` passes all tasks of a step through the model as one batch, so that they share batch-norm
    statistics; `"task"` passes each by itself. Losses, penalties and the change of outputs that are modules keep their
    state here: buffers are remembered with a run, and parameters are trained with the model's. Those of players are
    trained by their own optimizers.

    A system whose loss is not such a sum is a subclass with a `forward` of its own, or with other `risks`.
    """

    inside = False
    """Whether it looks at images or inside the backbone, which then cannot be compiled or frozen."""
    capturable = True
    """Whether a CUDA graph can hold it: it asks the device for no value, and copies none there."""
    rate = 1.0
    """The learning rate, relative to the backbone's, of parameters that are not of its parts."""

    def __init__(
        self,
        losses: Sequence[Loss],
        penalties: Sequence[PenaltyFunction] = (),
        forward: Forward = "step",
        change: Change | None = None,
    ) -> None:
        super().__init__()
        if not losses:
            raise MedicError("an objective needs a loss: objective(ce), objective(ce, ova)")
        self.losses, self.penalties, self.change = tuple(losses), tuple(penalties), change
        self.passes: Forward = check_choice("forward", forward, get_args(Forward))  # type: ignore[assignment]
        self.parts = nn.ModuleList(part for part in (*losses, *penalties, change) if isinstance(part, nn.Module))

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward the step and measure it."""
        output = self.outputs(model, step)
        with torch.autocast(step.y.device.type, enabled=False):  # small, and differences need all digits
            if self.change is not None:
                output = self.change(model, output, step)
            return self.penalised(self.risks(model, output, step), output, step)

    def outputs(self, model: nn.Module, step: Step) -> Output:
        """What a model says of a step, whose tasks are passed together or each by itself."""
        if self.passes == "step":
            return Output.of(model(step.x))
        return Output.cat([Output.of(model(task.x)) for task in step.tasks()])

    def penalised(self, tasks: Tensor, output: Output, step: Step) -> Risk:
        """The risk of a step whose tasks have these mean losses (m,): with the penalties."""
        penalties = [penalty(tasks, output, step) for penalty in self.penalties]
        return Risk(tasks, torch.stack(penalties).sum() if penalties else None, output.logits.detach())

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """The risk of every task (m,), from what the model said of the step."""
        return self.average(torch.stack([loss(output, step.y) for loss in self.losses]).sum(0), step)

    def average(self, losses: Tensor, step: Step) -> Tensor:
        """The risk of each task (m,) from the losses of the samples (N,)."""
        return step.means(losses)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make what the parts need; in a loop of one's own, memories are made by their first step."""
        for part in self.parts:
            if isinstance(part, Penalty):
                part.prepare(model, setup)

    @property
    def players(self) -> tuple[Player, ...]:
        """What takes turns with the model."""
        return tuple(part for part in self.modules() if isinstance(part, Player))

    def own_parameters(self) -> list[tuple[list[nn.Parameter], float]]:
        """What is trained with the model's parameters, each group with its rate relative to the backbone's."""
        played = {parameter for player in self.players for parameter in player.parameters()}
        penalties = [part for part in self.parts if isinstance(part, Penalty)]
        theirs = {parameter for penalty in penalties for parameter in penalty.parameters()}
        rest = [parameter for parameter in self.parameters() if parameter not in theirs]
        groups = [(list(penalty.parameters()), penalty.rate) for penalty in penalties] + [(rest, self.rate)]
        trained = [([p for p in group if p.requires_grad and p not in played], rate) for group, rate in groups]
        return [(group, rate) for group, rate in trained if group]

    def restarts(self, steps: int) -> set[int]:
        """The iterations, of so many steps, before which the optimizer's memory is dropped."""
        found = {part.restart for part in self.parts if isinstance(part, Penalty)}
        return {-(-step // steps) for step in found if step is not None}


def objective(
    *losses: Loss,
    penalties: Sequence[PenaltyFunction] = (),
    forward: Forward = "step",
    change: Change | None = None,
) -> Objective:
    """Compose losses and penalties: `objective(ce)`, `objective(ce, ova)`."""
    return Objective(losses, penalties, forward, change)


def classify(model: nn.Module, features: Tensor) -> Output:
    """What a model's heads say of features (N, F)."""
    heads = getattr(model, "classify", None)
    if heads is None:
        raise MedicError(
            f"{type(model).__name__} has no method classify(features), which this objective asks its heads by"
        )
    return Output.of(heads(features))


def split_features(output: Output, step: Step) -> list[Tensor]:
    """The features (N_i, F) of every task of a step."""
    if output.features is None:
        raise MedicError("this penalty needs the features of the backbone: return Output(logits, features=features)")
    return list(output.features.split(step.sizes))
