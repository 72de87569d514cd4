"""The base of callbacks: they run between iterations and change what is drawn next."""

from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from medic.data import Images, Samples
from medic.models import Preprocessing
from medic.objectives import Objective
from medic.strategies import Strategy
from medic.tasks import Cells, Grid, GridSpec
from medic.training.inference import Inference
from medic.training.precision import Precision
from medic.utils.parts import check_hyperparameters


class Training(Protocol):
    """The training that a callback inspects and changes: that of a run, or of a `medic.Learner` with a training set."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    strategy: Strategy
    objective: Objective
    grid: Grid
    images: Images
    samples: Samples
    cells: Cells
    preprocessing: Preprocessing
    batch_size: int
    device: torch.device
    precision: Precision
    iteration: int

    def inference(self) -> Inference:
        """Return the inference of the model in training."""

    def relabel(self, samples: Samples) -> None:
        """Train on these samples from the next draw on; their labels may have changed."""


class Callback:
    """Code that runs every so many iterations, after all earlier iterations have finished.

    It may change the grid of the training or the labels of its samples; no iteration is drawn across its turn. A
    subclass is a dataclass whose hyperparameters are declared fields.
    """

    every: int = 1
    """The number of iterations between two turns."""
    needs: ClassVar[tuple[str, ...]] = ("train_set",)
    """What it needs in a loop of one's own, by the names in `medic.objectives.needs`."""
    single_process: str | None = None
    """Reason why the callback cannot run in distributed training, or None."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def check(self, objective: type[Objective], grid: GridSpec) -> None:
        """Refuse an objective or a grid that the callback cannot work with."""

    def start(self, training: Training) -> None:
        """Prepare before samples are indexed; their labels and attributes may be replaced here."""

    def on_iteration(self, training: Training) -> None:
        """Inspect the model and prepare the next draws."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return numbers for the records of the run, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later draws and turns depend on."""
        return {}

    def load_state_dict(self, training: Training, state: dict[str, Any]) -> None:
        """Restore the state, and repeat the changes that were made to the training."""
