"""The callback of the sampler `probe`: an extra pass over fresh images, as the authors do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from medic.tasks.lagged import softmax_sums
from medic.training.callbacks.base import Callback
from medic.training.inference import Inference

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


@dataclass
class ProbeConfusion(Callback):
    """Shows the sampler the model's outputs for fresh images, before every iteration.

    Every cell gives as many images as a task takes from one. They are not augmented, unlike those of the authors.
    """

    def on_iteration(self, trainer: "Trainer") -> None:
        """Forward a draw of every cell."""
        grid, cells, samples = trainer.grid, trainer.cells, trainer.samples
        count = max(1, trainer.batch_size * grid.tasks // len(cells.keys))
        chosen = torch.cat([cells.draw(cell, count, grid.generator) for cell in cells.keys])
        infer = Inference(trainer.model, trainer.images, trainer.preprocessing, trainer.device, trainer.precision)
        logits = infer(samples.indices[chosen], features=False).logits.cpu()
        grid.sampler.observe(softmax_sums(logits, samples.label[chosen], samples.domain[chosen], trainer.domains))
