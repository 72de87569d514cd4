"""Objectives, which compute the risk of each task in a step and add penalties."""

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
"""Maps the outputs for N samples and labels of shape (N,) to losses of shape (N,), or to their mean."""

PenaltyFunction = Callable[[Tensor, Output, Step], Tensor]
"""Maps task risks of shape (m,), the outputs and the step to a scalar, which is added to the mean risk."""

Change = Callable[[nn.Module, Output, Step], Output]
"""Maps the model's outputs for a step to the outputs passed to the losses."""

Forward = Literal["step", "task"]


@dataclass(frozen=True)
class Risk:
    """The risks of one step."""

    tasks: Tensor
    """Mean loss of each task, of shape (m,)."""
    penalty: Tensor | None
    """Scalar to add to the mean task risk."""
    logits: Tensor
    """Closed-set logits of shape (N, C), detached."""

    @property
    def total(self) -> Tensor:
        """The loss that an inner step minimises: the sum of the task risks, plus the penalty once per task."""
        total = self.tasks.sum()
        return total if self.penalty is None else total + len(self.tasks) * self.penalty

    def plus(self, penalty: Tensor) -> "Risk":
        """Return this risk with another penalty added."""
        return replace(self, penalty=penalty if self.penalty is None else self.penalty + penalty)


@dataclass(frozen=True)
class Setup:
    """The step sizes and input format that an objective is prepared for.

    Inputs have shape (N, *shape). They are pixels in [0, 1], normalised per channel with `mean` and `std`.
    """

    tasks: int = 1
    """Number of tasks in the largest step."""
    images: int = 1
    """Number of images in the largest step."""
    epoch: int = 1
    """Iterations per epoch."""
    shape: tuple[int, ...] = (3, 32, 32)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    domains: int = 1
    """Upper bound (exclusive) of the domain labels. Not all labels occur: a run never trains on target domains."""

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Convert inputs of shape (N, C, H, W) to pixels in [0, 1]."""
        return denormalised(inputs, self.mean, self.std)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Convert pixels in [0, 1], of shape (N, C, H, W), to inputs."""
        return normalised(pixels, self.mean, self.std)


PENALTIES: dict[str, type["Penalty"]] = {}
"""Penalties by their `--penalty` name."""


class Penalty(DeclaredModule):
    """Base class for penalties that keep state in buffers or train their own parameters.

    Decorate subclasses with `@dataclass(eq=False)` and declare hyperparameters as fields. The class argument `name`
    registers the penalty. A stateless penalty can also be a plain function with the same signature.
    """

    fixed_order: ClassVar[bool] = False
    """Whether the penalty tracks tasks by position. Each iteration must then be one step with tasks in fixed order."""
    compares_tasks: ClassVar[bool] = False
    """Whether the penalty compares tasks. Each step must then contain at least two."""
    needs_linear_head: ClassVar[bool] = False
    """Whether the penalty assumes that logits are linear in the features."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements besides logits, as names from `medic.objectives.needs`."""
    min_samples: ClassVar[int] = 1
    """Minimum number of samples per task."""
    inspects_backbone: ClassVar[bool] = False
    """Whether the penalty reads images or feature maps. The backbone can then be neither compiled nor frozen."""
    lr_scale: ClassVar[float] = 1.0
    """Learning rate for the penalty's parameters, relative to the backbone's."""
    preset: ClassVar[Mapping[str, Any]] = {}
    """Run settings that the penalty changes by default."""

    def __init_subclass__(cls, name: str | None = None) -> None:
        super().__init_subclass__()
        if name is not None:
            PENALTIES[name] = cls

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Allocate buffers and parameters for a model and its steps."""

    @property
    def restart_step(self) -> int | None:
        """The step before which the optimizer state is reset because the risk changes, or None."""
        return None

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compute the penalty for a step. `PenaltyFunction` describes the arguments."""
        raise NotImplementedError


@dataclass(eq=False)
class Objective(DeclaredModule):
    """The sum of one or more losses, averaged over each task, plus penalties.

    `passes="step"` forwards all tasks in a step as one batch, so they share batch-norm statistics. `passes="task"`
    forwards each task separately. `change` modifies the outputs before the losses are computed.

    Losses, penalties and `change` may be modules. Checkpoints then include their buffers, and their parameters are
    trained with the model. Auxiliary networks have their own optimizers. Systems whose loss is not a sum over tasks
    subclass `Objective`.
    """

    losses: Sequence[Loss]
    penalties: Sequence[PenaltyFunction] = ()
    passes: Forward = "step"
    # A default value would become a class attribute and hide the module, which nn.Module stores outside __dict__.
    change: Change | None = field(default_factory=lambda: None)

    inspects_backbone: ClassVar[bool] = False
    """Whether the objective reads images or feature maps. The backbone can then be neither compiled nor frozen."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements besides those of the losses, as names from `medic.objectives.needs`."""
    lr_scale: ClassVar[float] = 1.0
    """Learning rate for the objective's own parameters, relative to the backbone's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.losses:
            raise MedicError("an objective requires at least one loss: use objective(ce) or objective(ce, ova)")
        check_choice("forward", self.passes, get_args(Forward))
        self.losses = [adapted(loss) for loss in self.losses]
        if not isinstance(self.penalties, Sequence):
            raise MedicError(f"penalties must be a list, got {name_of(self.penalties)}: use penalties=[penalty]")
        for part, kind in (*((penalty, "penalty") for penalty in self.penalties), (self.change, "change")):
            if part is not None and (isinstance(part, type) or not callable(part)):
                way = "pass an instance, not the class" if isinstance(part, type) else "pass a function"
                raise MedicError(f"{kind} {part!r} has type {type(part).__name__}: {way}")
        modules = (part for part in (*self.losses, *self.penalties, self.change) if isinstance(part, nn.Module))
        self.parts = nn.ModuleList(modules)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward a step and compute its risk."""
        output = self.outputs(model, step)
        with torch.autocast(step.y.device.type, enabled=False):  # cheap, and differences require full precision
            if self.change is not None:
                output = self.change(model, output, step)
            return self.penalised(self.risks(model, output, step), output, step)

    def outputs(self, model: nn.Module, step: Step) -> Output:
        """Run a forward pass over the tasks in a step, together or one by one."""
        if self.passes == "step":
            return _forward(model, step)
        return Output.cat([_forward(model, task) for task in step.tasks()])

    def penalised(self, tasks: Tensor, output: Output, step: Step) -> Risk:
        """Add the penalties to task risks of shape (m,) and return the risk of the step."""
        penalties = [penalty(tasks, output, step) for penalty in self.penalties]
        return Risk(tasks, torch.stack(penalties).sum() if penalties else None, output.logits.detach())

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """Compute the risk of each task, of shape (m,), from the model's outputs for a step."""
        try:
            loss_values = [loss(output, step.y) for loss in self.losses]
        except (IndexError, RuntimeError) as error:
            _check_labels(output, step, error)
            raise
        each = [losses for losses in loss_values if losses.dim()]
        terms = [self.average(torch.stack(each).sum(0), step)] if each else []
        for loss, losses in zip(self.losses, loss_values, strict=True):
            if not losses.dim():  # a scalar averages over the whole step: recompute it per task
                terms.append(_task_means(loss, output, step))
        return reduce(add, terms)

    def average(self, losses: Tensor, step: Step) -> Tensor:
        """Average per-sample losses of shape (N,) over each task, giving shape (m,)."""
        return step.means(losses)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Prepare the penalties for a model. Some also work unprepared and allocate their buffers in the first step."""
        for penalty in self._penalties():
            penalty.prepare(model, setup)

    @property
    def auxiliary(self) -> tuple[AuxiliaryNetwork, ...]:
        """The auxiliary networks."""
        return tuple(part for part in self.modules() if isinstance(part, AuxiliaryNetwork))

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return parameters to train with the model, in groups with a learning rate relative to the backbone's."""
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
        """Return the iterations before which the optimizer state is reset. `steps`: number of steps per iteration."""
        restart_steps = {penalty.restart_step for penalty in self._penalties()}
        return {-(-step // steps) for step in restart_steps if step is not None}

    def _penalties(self) -> list[Penalty]:
        """Return the penalties that are modules."""
        return [part for part in self.parts if isinstance(part, Penalty)]


@dataclass(frozen=True)
class ObjectiveKind:
    """A named objective: its losses, with the heads and the score that match them."""

    losses: tuple[Part[Loss], ...]
    heads: tuple[str, ...]
    """Heads that the objective can train. The first is the default."""
    score: str
    """Default score."""
    kind: type[Objective] = Objective
    networks: Literal["one", "domain"] = "one"
    """Whether the model is a single network (`one`) or has one network per source domain (`domain`)."""


def objective(
    *losses: Loss | Callable[[Tensor, Tensor], Tensor],
    penalties: Sequence[PenaltyFunction] = (),
    forward: Forward = "step",
    change: Change | None = None,
) -> Objective:
    """Compose losses and penalties: `objective(ce)`, `objective(ce, ova)`, `objective(nn.CrossEntropyLoss())`.

    A custom loss takes (logits, labels), or (output, labels) to receive the whole `Output`. It returns one loss per
    sample, of shape (N,), or their mean. medic calls a loss that returns the mean once per task.
    """
    return Objective(losses, penalties, forward, change)  # type: ignore[arg-type]


def _forward(model: nn.Module, step: Step) -> Output:
    """Forward a step. If the model fails because the inputs do not match it, raise an error that says why."""
    try:
        result = model(step.x)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, MedicError) or (reason := _mismatch(model, step.x)) is None:
            raise
        raise MedicError(f"the model failed on these inputs: {reason} ({first_line(error)})") from error
    output = Output.of(result).in_full()
    output.check_logits(len(step.y))
    return output


def _check_labels(output: Output, step: Step, error: Exception) -> None:
    """Raise an error that names the first out-of-range label, if there is one. Checks labels on the CPU only."""
    classes = output.logits.shape[1]
    if step.y.device.type == "cpu" and len(wrong := step.y[(step.y < 0) | (step.y >= classes)]):
        raise MedicError(
            f"label {int(wrong[0])} is outside the model's {classes} classes, 0 to {classes - 1}: remove unknown "
            "samples, and number the classes from 0"
        ) from error


def _mismatch(model: nn.Module, x: Tensor) -> str | None:
    """Describe how the inputs differ from the model's weights. Return None for a model without weights."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return None
    if x.device != weight.device:
        return f"the inputs are on {x.device} and the weights on {weight.device}; use x.to({str(weight.device)!r})"
    if not x.is_floating_point():
        return f"inputs must be floating-point numbers, got {x.dtype}; use x.float() / 255"
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        return f"the inputs are {x.dtype} and the weights {weight.dtype}; use x.to({weight.dtype})"
    return f"the inputs have shape {tuple(x.shape)}"


def _task_means(loss: Loss, output: Output, step: Step) -> Tensor:
    """Return mean losses per task, of shape (m,), for a loss that averages over its samples."""
    parts = [output.map(lambda rows, k=k: rows.split(step.sizes)[k]) for k in range(len(step.sizes))]  # type: ignore[misc]
    means = [loss(part, task.y) for part, task in zip(parts, step.tasks(), strict=True)]
    shares = zip(means, step.sizes, step.totals or step.sizes, strict=True)
    return torch.stack([mean * (size / total) for mean, size, total in shares])


def classify(model: nn.Module, features: Tensor) -> Output:
    """Apply a model's heads to features of shape (N, F)."""
    heads = getattr(model, "classify", None)
    if heads is None:
        raise MedicError(f"this objective requires classify(features): add this method to {type(model).__name__}")
    return Output.of(heads(features))


def features_of(output: Output) -> Tensor:
    """Return the features of an output, of shape (N, F). Raises an error if a custom model does not return them."""
    if output.features is None:
        raise MedicError("this objective requires features: make the model return Output(logits, features=features)")
    return output.features


def split_features(output: Output, step: Step) -> list[Tensor]:
    """Return the features of each task in a step, of shape (N_i, F)."""
    return list(features_of(output).split(step.sizes))
