"""An iteration in two parts: the batch that the host draws, and the update that the device computes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from medic.models import Classifier
from medic.models.heads import Head
from medic.tasks import Step
from medic.tasks.lagged import softmax_sums
from medic.training.precision import Bf16Weights, arithmetic
from medic.utils import distributed
from medic.utils.modules import evaluating
from medic.utils.outputs import Output

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


@dataclass(frozen=True)
class Batch:
    """The host's part of an iteration of N images, ordered by step and task; a probe is the last step.

    `positions` (N,) are rows of the images, `draws` (N, 10) the random numbers of the augmentation, `y` and
    `attributes` (N,) the labels, `sizes` the images of every task of every step, and `totals` those of all processes
    together. `pixels` (N, C, H, W) are given if the images are not on the device.
    """

    positions: Tensor
    draws: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    sizes: tuple[tuple[int, ...], ...]
    totals: tuple[tuple[int, ...], ...]
    pixels: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return every tensor of the batch."""
        pixels = [] if self.pixels is None else [self.pixels]
        return [self.positions, self.draws, self.y, *self.attributes.values(), *pixels]

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device without waiting."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

        return replace(
            self,
            positions=moved(self.positions),
            draws=moved(self.draws),
            y=moved(self.y),
            attributes={name: moved(values) for name, values in self.attributes.items()},
            pixels=None if self.pixels is None else moved(self.pixels),
        )

    def copy_(self, other: "Batch") -> None:
        """Copy the values of another batch of the same shape."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs.pin_memory() if mine.is_cuda else theirs, non_blocking=True)


class Outcome(NamedTuple):
    """The results of an iteration: the risk of every task (t,), and the summary for the sampler."""

    risks: Tensor
    summary: Tensor | None


class Iteration:
    """The device's part of a trainer's iteration: gathers and augments images, and takes an outer step.

    It never synchronises with the device, so that a CUDA graph can hold it. The network and the augmentation are
    compiled if the trainer says so, which takes half a minute.
    """

    part = ""
    """The part that is running, named if a CUDA graph cannot hold it."""

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer, self.network = trainer, trainer.model
        self.augment: Callable[[Tensor, Tensor], Tensor] = self._augment
        self._heads = [module for module in self.network.modules() if isinstance(module, Head)]
        if trainer.precision == "bf16" and isinstance(self.network, Classifier):
            self.network = Bf16Weights(self.network, self.network.backbone, trainer.compiled)
        elif trainer.compiled:
            self.network = cast(nn.Module, torch.compile(self.network, dynamic=False))
        if trainer.compiled:
            self.augment = torch.compile(self._augment, dynamic=False)

    def __call__(self, batch: Batch) -> Outcome:
        """Run one iteration with a batch on the device."""
        trainer, network, grid = self.trainer, self.network, self.trainer.grid
        strategy, objective, optimizer = trainer.strategy, trainer.objective, trainer.optimizer
        self.part = "the augmentation"
        steps, probe = self.load(batch)
        for head in self._heads:
            head.renew()
        self._update_auxiliary(steps, before_model=True)
        self.part = f"the strategy {type(strategy).__name__}"
        optimizer.zero_grad()
        with arithmetic(trainer.precision, trainer.device):
            update = strategy(network, steps, objective)
        self.part = f"the optimizer {type(optimizer).__name__}"
        if trainer.clip_norm is not None:
            nn.utils.clip_grad_norm_([*network.parameters(), *objective.parameters()], trainer.clip_norm)
        optimizer.step()
        self._update_auxiliary(steps, before_model=False)
        self.part = f"the sampler {type(grid.sampler).__name__}"
        summary = None
        if probe is not None:
            summary = self._confusion(probe)
        elif grid.spec.classes is not None:
            summary = grid.sampler.summarise(update.logits, update.y, update.domain, trainer.domains)
        distributed.all_reduce([update.risks, summary])
        return Outcome(update.risks, summary)

    def _update_auxiliary(self, steps: Sequence[Step], before_model: bool) -> None:
        """Update the auxiliary networks scheduled before (or after) the model."""
        for network in self.trainer.objective.auxiliary:
            if network.before_model == before_model:
                self.part = f"the auxiliary network {type(network).__name__}"
                with arithmetic(self.trainer.precision, self.trainer.device):
                    network.update(self.network, steps)

    @torch.no_grad()
    def _confusion(self, probe: Step) -> Tensor:
        """Return how the model, as it is now, takes fresh images: sums of its softmax in evaluation mode."""
        trainer = self.trainer
        with evaluating(trainer.model), arithmetic(trainer.precision, trainer.device):
            logits = Output.of(self.network(probe.x)).logits
        return softmax_sums(logits, probe.y, probe.domain, trainer.domains)

    def load(self, batch: Batch) -> tuple[list[Step], Step | None]:
        """Gather, augment and normalise the images of every step, and of a probe if the sampler asks for one."""
        steps = list(self._steps(batch))
        return (steps[:-1], steps[-1]) if self.trainer.probes else (steps, None)

    def _steps(self, batch: Batch) -> Iterator[Step]:
        start = 0
        for index, (sizes, totals) in enumerate(zip(batch.sizes, batch.totals, strict=True)):
            rows = slice(start, start + sum(sizes))
            if batch.pixels is None:
                raw = self.trainer.images.gather(batch.positions[rows], self.trainer.device)
            else:
                raw = batch.pixels[rows]
            inputs = raw if raw.is_floating_point() else self.augment(raw, batch.draws[rows])  # frozen features stay
            attributes = {name: values[rows] for name, values in batch.attributes.items()}
            yield Step(inputs, batch.y[rows], sizes, attributes, totals, index)
            start = rows.stop

    def _augment(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Turn uint8 pixels (N, C, H, W) into inputs: augmented, normalised, channels last."""
        preprocessing = self.trainer.preprocessing
        varied = self.trainer.augmentation.apply(pixels.float() / 255, draws, preprocessing.size)
        return preprocessing(varied).contiguous(memory_format=torch.channels_last)
