"""Advisors: they look at the model now and then, and change what is drawn next."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from medic.tasks.lagged import softmax_sums
from medic.training.inference import Inference
from medic.training.informative import Chooser

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


class Advisor(Protocol):
    """Something that is asked before every so many iterations, when all earlier ones are done.

    It may change the trainer's grid or the labels of its samples; nothing is drawn across its turn.
    """

    every: int
    """The iterations from one turn to the next."""

    def start(self, trainer: "Trainer") -> None:
        """Learn what there is, before samples are indexed: their labels and attributes may be replaced."""

    def advise(self, trainer: "Trainer") -> None:
        """Look at the model as it is, and prepare the next draws."""

    def state_dict(self) -> dict[str, Any]:
        """All that later draws and turns depend on."""

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off: what was changed of the trainer is changed again."""


class Prober:
    """Shows the sampler what the model says of fresh images, before every iteration.

    As many are drawn of every cell as a task takes of one, and they are not augmented, as those of the authors are.
    """

    every = 1

    def start(self, trainer: "Trainer") -> None:
        """Nothing to learn."""

    def advise(self, trainer: "Trainer") -> None:
        """Run the model over a draw of every cell."""
        grid, cells, samples = trainer.grid, trainer.cells, trainer.samples
        count = max(1, trainer.batch_size * grid.tasks // len(cells.keys))
        chosen = torch.cat([cells.draw(cell, count, grid.generator) for cell in cells.keys])
        infer = Inference(trainer.model, trainer.images, trainer.preprocessing, trainer.device, trainer.precision)
        logits = infer(samples.indices[chosen], features=False).logits.cpu()
        grid.sampler.observe(softmax_sums(logits, samples.label[chosen], samples.domain[chosen], trainer.domains))

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """No state."""


OF_SAMPLERS: Mapping[str, Callable[[], Advisor]] = {"probe": Prober, "informative": Chooser}
"""What samplers need that ask the model."""
