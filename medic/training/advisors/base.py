"""What looks at the model now and then, and changes what is drawn next."""

from typing import TYPE_CHECKING, Any

from medic.objectives import Objective
from medic.tasks import Grid

if TYPE_CHECKING:
    from medic.training.trainer import Trainer


class Advisor:
    """Something that is asked before every so many iterations, when all earlier ones are done.

    It may change the trainer's grid or the labels of its samples; nothing is drawn across its turn.
    """

    every: int = 1
    """The iterations from one turn to the next."""
    alone: str | None = None
    """Why several processes that share every task cannot each ask it, if they cannot."""

    def check(self, objective: Objective, grid: Grid) -> None:
        """Refuse, by name, what it cannot look at or change."""

    def start(self, trainer: "Trainer") -> None:
        """Learn what there is, before samples are indexed: their labels and attributes may be replaced."""

    def advise(self, trainer: "Trainer") -> None:
        """Look at the model as it is, and prepare the next draws."""
        raise NotImplementedError

    def report(self) -> dict[str, float]:
        """Numbers that the run's records should have, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that later draws and turns depend on."""
        return {}

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off: what was changed of the trainer is changed again."""
