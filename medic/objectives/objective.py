"""An objective: one forward pass of a step → one risk per task, plus penalties over them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_choice, first_line
from medic.objectives.auxiliary import AuxiliaryNetwork
from medic.objectives.custom_losses import adapted, name_of
from medic.tasks import Step
from medic.utils.modules import DeclaredModule
from medic.utils.outputs import Output
from medic.utils.parts import Part
from medic.utils.pixels import denormalised, normalised

Loss = Callable[[Output, Tensor], Tensor]
"""Maps the outputs of N samples and their classes (N,) to one loss per sample (N,), or to their mean."""

PenaltyFunction = Callable[[Tensor, Output, Step], Tensor]
"""Maps the risks of a step's tasks (m,), the outputs and the step to a scalar that is added to the mean risk."""

Change = Callable[[nn.Module, Output, Step], Output]
"""Maps the model's outputs for a step to the outputs that the losses see."""

Forward = Literal["step", "task"]


@dataclass(frozen=True)
class Risk:
    """The risks of one step."""

    tasks: Tensor
    """The mean loss of each task (m,)."""
    penalty: Tensor | None
    """A scalar to be added to the mean of the task risks."""
    logits: Tensor
    """The closed-set logits (N, C), detached."""

    @property
    def total(self) -> Tensor:
        """The loss that an inner step descends: the sum of the task risks, with the penalty once per task."""
        total = self.tasks.sum()
        return total if self.penalty is None else total + len(self.tasks) * self.penalty

    def plus(self, penalty: Tensor) -> "Risk":
        """Return the risk with a further penalty."""
        return replace(self, penalty=penalty if self.penalty is None else self.penalty + penalty)


@dataclass(frozen=True)
class Setup:
    """The training that an objective is prepared for: the size of its steps and the form of its inputs.

    Inputs (N, *shape) are pixels in [0, 1], normalised per channel by `mean` and `std`.
    """

    tasks: int = 1
    """Tasks of the largest step."""
    images: int = 1
    """Images of the largest step."""
    epoch: int = 1
    """Iterations per epoch."""
    shape: tuple[int, ...] = (3, 32, 32)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    domains: int = 1
    """The number that all domain labels of steps are below. In a run, labels of target domains do not occur."""

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Turn inputs (N, C, H, W) into pixels in [0, 1]."""
        return denormalised(inputs, self.mean, self.std)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Turn pixels in [0, 1] (N, C, H, W) into inputs."""
        return normalised(pixels, self.mean, self.std)


PENALTIES: dict[str, type["Penalty"]] = {}
"""Penalties by the name that `--penalty` knows them by."""


class Penalty(DeclaredModule):
    """A penalty with memory in its buffers, or with its own weights in its parameters.

    A subclass is a dataclass, `@dataclass(eq=False)`, whose fields are its hyperparameters; its `name` registers it.
    Plain functions of the same signature serve as penalties too.
    """

    fixed_order: ClassVar[bool] = False
    """Whether it remembers tasks by position, so that an iteration must be one step with tasks in fixed order."""
    compares_tasks: ClassVar[bool] = False
    """Whether it compares the tasks of a step, which must then have at least two."""
    needs_linear_head: ClassVar[bool] = False
    """Whether it takes logits to be linear in the features."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs beyond logits, by the names in `medic.objectives.needs`."""
    min_samples: ClassVar[int] = 1
    """The least number of samples of a task."""
    inspects_backbone: ClassVar[bool] = False
    """Whether it reads images or maps inside the backbone, which can then be neither compiled nor frozen."""
    lr_scale: ClassVar[float] = 1.0
    """The learning rate of its parameters relative to the backbone's."""
    preset: ClassVar[Mapping[str, Any]] = {}
    """Settings of a run that come with the penalty unless others are given."""

    def __init_subclass__(cls, name: str | None = None) -> None:
        super().__init_subclass__()
        if name is not None:
            PENALTIES[name] = cls

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Allocate memory and weights for a model and its steps."""

    @property
    def restart_step(self) -> int | None:
        """The step before which the optimizer state is reset, because the risk changes there."""
        return None

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compute the penalty of a step: see `PenaltyFunction`."""
        raise NotImplementedError


@dataclass(eq=False)
class Objective(DeclaredModule):
    """The sum of some losses, averaged per task, plus penalties.

    `passes="step"` forwards all tasks of a step as one batch, which share batch-norm statistics; `"task"` forwards each
    task by itself. Losses, penalties and the change of outputs that are modules keep their state here: buffers are part
    of a checkpoint and parameters are trained with the model's. Auxiliary networks have their own optimizers.

    Systems whose loss is not a sum over tasks subclass `Objective`.
    """

    losses: Sequence[Loss]
    penalties: Sequence[PenaltyFunction] = ()
    passes: Forward = "step"
    # A factory leaves no class attribute, which would hide a module: nn.Module keeps modules outside of __dict__.
    change: Change | None = field(default_factory=lambda: None)

    inspects_backbone: ClassVar[bool] = False
    """Whether it reads images or maps inside the backbone, which can then be neither compiled nor frozen."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs beyond its losses' needs, by the names in `medic.objectives.needs`."""
    lr_scale: ClassVar[float] = 1.0
    """The learning rate of its own parameters relative to the backbone's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.losses:
            raise MedicError("an objective needs a loss: objective(ce), objective(ce, ova)")
        check_choice("forward", self.passes, get_args(Forward))
        self.losses = [adapted(loss) for loss in self.losses]
        if not isinstance(self.penalties, Sequence):
            raise MedicError(f"penalties are a {name_of(self.penalties)}: give a list, penalties=[penalty]")
        for part, kind in (*((penalty, "penalty") for penalty in self.penalties), (self.change, "change")):
            if part is not None and (isinstance(part, type) or not callable(part)):
                way = "make one, with ()" if isinstance(part, type) else "give a function"
                raise MedicError(f"{kind} {part!r} is a {type(part).__name__}: {way}")
        modules = (part for part in (*self.losses, *self.penalties, self.change) if isinstance(part, nn.Module))
        self.parts = nn.ModuleList(modules)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward a step and measure it."""
        output = self.outputs(model, step)
        with torch.autocast(step.y.device.type, enabled=False):  # cheap, and differences need full precision
            if self.change is not None:
                output = self.change(model, output, step)
            return self.penalised(self.risks(model, output, step), output, step)

    def outputs(self, model: nn.Module, step: Step) -> Output:
        """Forward a step, its tasks together or one by one."""
        if self.passes == "step":
            return _forward(model, step)
        return Output.cat([_forward(model, task) for task in step.tasks()])

    def penalised(self, tasks: Tensor, output: Output, step: Step) -> Risk:
        """Return the risk of a step from the mean losses of its tasks (m,), with the penalties."""
        penalties = [penalty(tasks, output, step) for penalty in self.penalties]
        return Risk(tasks, torch.stack(penalties).sum() if penalties else None, output.logits.detach())

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """Return the risk of every task (m,) from the model's outputs for a step."""
        try:
            loss_values = [loss(output, step.y) for loss in self.losses]
        except (IndexError, RuntimeError) as error:
            _check_labels(output, step, error)
            raise
        each = [losses for losses in loss_values if losses.dim()]
        terms = [self.average(torch.stack(each).sum(0), step)] if each else []
        for loss, losses in zip(self.losses, loss_values, strict=True):
            if not losses.dim():  # the mean over all samples, where each task has its own
                terms.append(_task_means(loss, output, step))
        return reduce(add, terms)

    def average(self, losses: Tensor, step: Step) -> Tensor:
        """Average the losses of the samples (N,) over each task: (m,)."""
        return step.means(losses)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Prepare the parts. Outside of `medic.train`, penalties with memory allocate it in their first step."""
        for penalty in self._penalties():
            penalty.prepare(model, setup)

    @property
    def auxiliary(self) -> tuple[AuxiliaryNetwork, ...]:
        """The auxiliary networks."""
        return tuple(part for part in self.modules() if isinstance(part, AuxiliaryNetwork))

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return the parameters to train with the model's, each group with its rate relative to the backbone's."""
        claimed = {parameter for network in self.auxiliary for parameter in network.parameters()}
        groups = []
        owners: list[Penalty | Objective] = [*self._penalties(), self]
        for owner in owners:
            own = [p for p in owner.parameters() if p.requires_grad and p not in claimed]
            claimed.update(own)
            if own:
                groups.append((own, owner.lr_scale))
        return groups

    def restart_iterations(self, steps: int) -> set[int]:
        """Return the iterations, of so many steps each, before which the optimizer state is reset."""
        restart_steps = {penalty.restart_step for penalty in self._penalties()}
        return {-(-step // steps) for step in restart_steps if step is not None}

    def _penalties(self) -> list[Penalty]:
        """Return the penalties that are modules."""
        return [part for part in self.parts if isinstance(part, Penalty)]


@dataclass(frozen=True)
class ObjectiveKind:
    """A kind of objective that a run can name: the losses, heads and score that belong together."""

    losses: tuple[Part[Loss], ...]
    heads: tuple[str, ...]
    """The heads that it trains, the default first."""
    score: str
    """The score that reads its outputs."""
    kind: type[Objective] = Objective
    networks: Literal["one", "domain"] = "one"
    """Whether the model is one network, or one per source domain."""


def objective(
    *losses: Loss | Callable[[Tensor, Tensor], Tensor],
    penalties: Sequence[PenaltyFunction] = (),
    forward: Forward = "step",
    change: Change | None = None,
) -> Objective:
    """Compose losses and penalties: `objective(ce)`, `objective(ce, ova)`, `objective(nn.CrossEntropyLoss())`.

    A loss of one's own is a function of (logits, labels), or of (output, labels) with the whole `Output`. It returns
    one loss per sample (N,), or their mean, which is then computed for every task.
    """
    return Objective(losses, penalties, forward, change)  # type: ignore[arg-type]


def _forward(model: nn.Module, step: Step) -> Output:
    """Return the outputs of a model for a step; an error of the model becomes a sentence if the inputs explain it."""
    try:
        result = model(step.x)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, MedicError) or (reason := _mismatch(model, step.x)) is None:
            raise
        raise MedicError(f"the model does not take these inputs: {reason} ({first_line(error)})") from error
    output = Output.of(result).in_full()
    output.check_logits(len(step.y))
    return output


def _check_labels(output: Output, step: Step, error: Exception) -> None:
    """Raise an error that names a label which is none of the model's classes, if one has led to an error on the CPU."""
    classes = output.logits.shape[1]
    if step.y.device.type == "cpu" and len(wrong := step.y[(step.y < 0) | (step.y >= classes)]):
        raise MedicError(
            f"label {int(wrong[0])} is none of the model's {classes} classes, 0 to {classes - 1}: leave out unknown "
            "samples, and number the classes from 0"
        ) from error


def _mismatch(model: nn.Module, x: Tensor) -> str | None:
    """Return the difference between the inputs and the weights of a model that explains an error, if there is one."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return None
    if x.device != weight.device:
        return f"they are on {x.device}, the weights on {weight.device}; use x.to({str(weight.device)!r})"
    if not x.is_floating_point():
        return f"they are {x.dtype}; give floating-point numbers, as in x.float() / 255"
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        return f"they are {x.dtype}, the weights {weight.dtype}; use x.to({weight.dtype})"
    return f"they have the shape {tuple(x.shape)}"


def _task_means(loss: Loss, output: Output, step: Step) -> Tensor:
    """Return the mean losses of the tasks (m,), where a loss returns the mean of the samples that it is given."""
    parts = [output.map(lambda rows, k=k: rows.split(step.sizes)[k]) for k in range(len(step.sizes))]  # type: ignore[misc]
    means = [loss(part, task.y) for part, task in zip(parts, step.tasks(), strict=True)]
    shares = zip(means, step.sizes, step.totals or step.sizes, strict=True)
    return torch.stack([mean * (size / total) for mean, size, total in shares])


def classify(model: nn.Module, features: Tensor) -> Output:
    """Return the outputs of a model's heads for features (N, F)."""
    heads = getattr(model, "classify", None)
    if heads is None:
        raise MedicError(f"{type(model).__name__} needs a method classify(features) for this objective")
    return Output.of(heads(features))


def features_of(output: Output) -> Tensor:
    """Return the features (N, F) of an output; a model of one's own may not return them."""
    if output.features is None:
        raise MedicError("this objective needs the features of the backbone: return Output(logits, features=features)")
    return output.features


def split_features(output: Output, step: Step) -> list[Tensor]:
    """Return the features (N_i, F) of every task of a step."""
    return list(features_of(output).split(step.sizes))
