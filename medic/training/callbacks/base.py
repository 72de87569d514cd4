"""Base class for callbacks, which run between iterations and can change subsequent draws."""

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
    """The training state available to callbacks, in a run or in a `medic.Learner` with a training set."""

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
        """Return an `Inference` for the model in training."""

    def relabel(self, samples: Samples) -> None:
        """Replace the training samples, whose labels may have changed, starting with the next draw."""


class Callback:
    """Base class for callbacks, which run every `every` iterations after all earlier iterations have finished.

    A callback may change the grid or the sample labels. Iterations are never drawn ahead past its next turn. Subclasses
    are dataclasses that declare their hyperparameters as fields.
    """

    every: int = 1
    """Number of iterations between two turns."""
    needs: ClassVar[tuple[str, ...]] = ("train_set",)
    """Requirements in a custom training loop, as names from `medic.objectives.needs`."""
    single_process: str | None = None
    """Reason why the callback does not support distributed training, or None if it does."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def check(self, objective: type[Objective], grid: GridSpec) -> None:
        """Raise an error if the callback does not support an objective or a grid."""

    def start(self, training: Training) -> None:
        """Prepare the callback before samples are indexed. It may replace their labels and attributes."""

    def on_iteration(self, training: Training) -> None:
        """Inspect the model and prepare the next draws."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return named values to log with the run's metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later draws and turns depend on."""
        return {}

    def load_state_dict(self, training: Training, state: dict[str, Any]) -> None:
        """Restore the state, and reapply the changes to the training."""
