"""The advisor of the sampler `probe`: what the model says of fresh images, asked by an extra pass as the authors do."""

from typing import TYPE_CHECKING

import torch

from medic.tasks.lagged import softmax_sums
from medic.training.advisors.base import Advisor
from medic.training.inference import Inference

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


class Prober(Advisor):
    """Shows the sampler what the model says of fresh images, before every iteration.

    As many are drawn of every cell as a task takes of one, and they are not augmented, as those of the authors are.
    """

    def advise(self, trainer: "Trainer") -> None:
        """Run the model over a draw of every cell."""
        grid, cells, samples = trainer.grid, trainer.cells, trainer.samples
        count = max(1, trainer.batch_size * grid.tasks // len(cells.keys))
        chosen = torch.cat([cells.draw(cell, count, grid.generator) for cell in cells.keys])
        infer = Inference(trainer.model, trainer.images, trainer.preprocessing, trainer.device, trainer.precision)
        logits = infer(samples.indices[chosen], features=False).logits.cpu()
        grid.sampler.observe(softmax_sums(logits, samples.label[chosen], samples.domain[chosen], trainer.domains))
