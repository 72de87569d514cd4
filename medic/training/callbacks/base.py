"""The base of callbacks: they run between iterations and change what is drawn next."""

from typing import TYPE_CHECKING, Any

from medic.objectives import Objective
from medic.tasks import GridSpec
from medic.utils.parts import check_hyperparameters

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


class Callback:
    """Code that runs every so many iterations, after all earlier iterations have finished.

    It may change the trainer's grid or the labels of its samples; no iteration is drawn across its turn. A subclass is
    a dataclass whose hyperparameters are declared fields.
    """

    every: int = 1
    """The number of iterations between two turns."""
    single_process: str | None = None
    """Reason why the callback cannot run in distributed training, or None."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def check(self, objective: type[Objective], grid: GridSpec) -> None:
        """Refuse an objective or a grid that the callback cannot work with."""

    def start(self, trainer: "Trainer") -> None:
        """Prepare before samples are indexed; their labels and attributes may be replaced here."""

    def on_iteration(self, trainer: "Trainer") -> None:
        """Inspect the model and prepare the next draws."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return numbers for the records of the run, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later draws and turns depend on."""
        return {}

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """Restore the state, and repeat the changes that were made to the trainer."""
