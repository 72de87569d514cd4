"""The two parts of an iteration: the host draws a batch, and the device computes the update."""

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
    """The N images in an iteration, ordered by step and task. If there is a probe, it is the last step.

    - `positions`: image indices of shape (N,).
    - `draws`: random numbers for the augmentation, of shape (N, 10).
    - `y`, `attributes`: labels of shape (N,).
    - `sizes`: number of images for each task in each step.
    - `totals`: the same numbers, summed over all processes.
    - `pixels`: pixels of shape (N, C, H, W), or None if the images are already on the device.
    """

    positions: Tensor
    draws: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    sizes: tuple[tuple[int, ...], ...]
    totals: tuple[tuple[int, ...], ...]
    pixels: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the batch."""
        pixels = [] if self.pixels is None else [self.pixels]
        return [self.positions, self.draws, self.y, *self.attributes.values(), *pixels]

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device without synchronising."""

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
        """Copy the values of another batch with the same shapes."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs.pin_memory() if mine.is_cuda else theirs, non_blocking=True)


@dataclass
class Iteration:
    """The device part of an iteration, which gathers and augments images and updates the model.

    An iteration never synchronises with the device, so it can be captured as a CUDA graph. `compiled` compiles the
    augmentation.
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
        """Run one iteration on a batch that is on the device."""
        self.updater.part = "the augmentation"
        return self.updater(*self.load(batch))

    def load(self, batch: Batch) -> tuple[list[Step], Step | None]:
        """Gather, augment and normalise the images in every step, and in the probe if the sampler uses one."""
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
        """Augment and normalise uint8 pixels of shape (N, C, H, W), and convert them to channels-last format."""
        varied = self.augmentation.apply(pixels.float() / 255, draws, self.preprocessing.size)
        return self.preprocessing(varied).contiguous(memory_format=torch.channels_last)
