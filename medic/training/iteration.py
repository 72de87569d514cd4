"""An iteration in two parts: the batch that the host draws, and the update that the device computes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from medic.data import Augmentation, Images
from medic.models import Preprocessing
from medic.strategies import Update
from medic.tasks import Step
from medic.training.updater import Updater


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


@dataclass
class Iteration:
    """The device's part of an iteration: gathers and augments images, and updates the model.

    It never synchronises with the device, so that a CUDA graph can hold it. With `compiled` the augmentation is
    compiled.
    """

    updater: Updater
    images: Images
    augmentation: Augmentation
    preprocessing: Preprocessing
    probes: bool
    """Whether the last step of a batch is a probe."""
    compiled: bool = False

    def __post_init__(self) -> None:
        self.device = self.updater.device
        self._augment: Callable[[Tensor, Tensor], Tensor] = self.augment
        if self.compiled:
            self._augment = torch.compile(self.augment, dynamic=False)

    def __call__(self, batch: Batch) -> Update:
        """Run one iteration with a batch on the device."""
        self.updater.part = "the augmentation"
        return self.updater(*self.load(batch))

    def load(self, batch: Batch) -> tuple[list[Step], Step | None]:
        """Gather, augment and normalise the images of every step, and of a probe if the sampler asks for one."""
        steps = list(self._steps(batch))
        return (steps[:-1], steps[-1]) if self.probes else (steps, None)

    def _steps(self, batch: Batch) -> Iterator[Step]:
        start = 0
        for index, (sizes, totals) in enumerate(zip(batch.sizes, batch.totals, strict=True)):
            rows = slice(start, start + sum(sizes))
            pixels = batch.pixels
            raw = self.images.gather(batch.positions[rows], self.device) if pixels is None else pixels[rows]
            inputs = raw if raw.is_floating_point() else self._augment(raw, batch.draws[rows])  # frozen features stay
            attributes = {name: values[rows] for name, values in batch.attributes.items()}
            yield Step(inputs, batch.y[rows], sizes, attributes, totals, index)
            start = rows.stop

    def augment(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Turn uint8 pixels (N, C, H, W) into inputs: augmented, normalised, channels last."""
        varied = self.augmentation.apply(pixels.float() / 255, draws, self.preprocessing.size)
        return self.preprocessing(varied).contiguous(memory_format=torch.channels_last)
