"""An iteration in two parts: what the host draws, and what the device makes of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from medic import distributed
from medic.data import Augmentation, Images
from medic.models import Classifier, Preprocessing
from medic.models.heads import Renewed
from medic.objectives import Objective
from medic.strategies import Strategy
from medic.tasks import Grid, Step
from medic.training.lowered import Lowered
from medic.training.precision import Precision, arithmetic


@dataclass(frozen=True)
class Batch:
    """All that the host decides of an iteration of N images, ordered by step and task.

    `positions` (N,) are rows of the images, `draws` (N, 10) the random part of the augmentation, `y` and `attributes`
    (N,) the labels, `sizes` the images of every task of every step, and `totals` those of all processes together.
    `pixels` (N, C, H, W) are there where the images are not on the device themselves.
    """

    positions: Tensor
    draws: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    sizes: tuple[tuple[int, ...], ...]
    totals: tuple[tuple[int, ...], ...]
    pixels: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Every tensor of it."""
        pixels = [] if self.pixels is None else [self.pixels]
        return [self.positions, self.draws, self.y, *self.attributes.values(), *pixels]

    def to(self, device: torch.device) -> "Batch":
        """A copy on a device; the host does not wait for it."""

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
        """Take the values of another batch of the same shape."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs.pin_memory() if mine.is_cuda else theirs, non_blocking=True)


class Outcome(NamedTuple):
    """What is kept of an iteration: the risk of every task (t,), and what the sampler learns from."""

    risks: Tensor
    summary: Tensor | None


@dataclass
class Iteration:
    """The part of an iteration that runs on the device: it gathers and varies images, and takes an outer step.

    It asks the device for no value, so that a CUDA graph can hold it.
    """

    network: nn.Module
    images: Images
    strategy: Strategy
    objective: Objective
    optimizer: torch.optim.Optimizer
    grid: Grid
    recipe: Augmentation
    preprocessing: Preprocessing
    device: torch.device
    precision: Precision
    clip_norm: float | None
    domains: int
    """One more than the largest domain that is trained on."""
    compiled: bool = False
    """Whether the network and the augmentation are compiled, which takes half a minute."""
    part: str = field(default="", init=False)
    """What it is at, for saying which part a CUDA graph cannot hold."""

    def __post_init__(self) -> None:
        self._renewed = [module for module in self.network.modules() if isinstance(module, Renewed)]
        self.vary: Callable[[Tensor, Tensor], Tensor] = self._vary
        if self.precision == "bf16" and isinstance(self.network, Classifier):
            self.network = Lowered(self.network, self.network.backbone, self.compiled)
        elif self.compiled:
            self.network = cast(nn.Module, torch.compile(self.network, dynamic=False))
        if self.compiled:
            self.vary = torch.compile(self._vary, dynamic=False)

    def __call__(self, batch: Batch) -> Outcome:
        """Do one iteration with a batch on the device."""
        self.part = "the augmentation"
        steps = list(self.load(batch))
        for module in self._renewed:
            module.renew()
        self._play(steps, first=True)
        self.part = f"the strategy {type(self.strategy).__name__}"
        self.optimizer.zero_grad()
        with arithmetic(self.precision, self.device):
            update = self.strategy(self.network, steps, self.objective)
        self.part = f"the optimizer {type(self.optimizer).__name__}"
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_([*self.network.parameters(), *self.objective.parameters()], self.clip_norm)
        self.optimizer.step()
        self._play(steps, first=False)
        self.part = f"the sampler {type(self.grid.sampler).__name__}"
        splits_classes = self.grid.classes is not None
        summarise = self.grid.sampler.summarise
        summary = summarise(update.logits, update.y, update.domain, self.domains) if splits_classes else None
        distributed.all_reduce([update.risks, summary])
        return Outcome(update.risks, summary)

    def _play(self, steps: Sequence[Step], first: bool) -> None:
        """Let the players take their turns that come before the model's, or after it."""
        for player in self.objective.players:
            if player.first == first:
                self.part = f"the player {type(player).__name__}"
                with arithmetic(self.precision, self.device):
                    player.play(self.network, steps)

    def load(self, batch: Batch) -> Iterator[Step]:
        """Gather, augment and normalise the images of every step."""
        counts = [sum(sizes) for sizes in batch.sizes]
        columns: Sequence[Tensor] = [batch.positions, batch.draws, batch.y, *batch.attributes.values()]
        rows = zip(*(column.split(counts) for column in columns), strict=True)
        pixels = [None] * len(counts) if batch.pixels is None else batch.pixels.split(counts)
        shapes = zip(batch.sizes, batch.totals, strict=True)
        parts = enumerate(zip(shapes, pixels, rows, strict=True))
        for index, ((sizes, totals), given, (positions, draws, y, *attributes)) in parts:
            raw = self.images.gather(positions, self.device) if given is None else given
            inputs = raw if raw.is_floating_point() else self.vary(raw, draws)  # features of a frozen backbone stay
            yield Step(inputs, y, sizes, dict(zip(batch.attributes, attributes, strict=True)), totals, index)

    def _vary(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Make inputs of uint8 pixels (N, C, H, W): augmented, normalised, channels last."""
        varied = self.recipe.apply(pixels.float() / 255, draws, self.preprocessing.size)
        return self.preprocessing(varied).contiguous(memory_format=torch.channels_last)
