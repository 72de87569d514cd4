"""MVDG: the average of several trajectories that start from the same weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from medic.errors import MedicError
from medic.objectives import Risk
from medic.strategies.base import Objective, Update, buffers, measured_call, summarise
from medic.strategies.inner import StatefulInnerLoop, displace, make_optimizer, stateful
from medic.tasks import Step
from medic.utils.parts import hyperparameter


@dataclass
class Trajectories(StatefulInnerLoop):
    """MVDG (Zhang et al. 2022): several trajectories from θ, and a move towards the mean of their endpoints.

    The steps of an iteration are divided, in order, among `count` trajectories. Each trajectory uses a fresh Adam with
    learning rate `lr`. `p.grad` is θ minus the mean of the endpoints φ, so outer SGD with learning rate ε moves to
    θ + ε (mean φ - θ).
    """

    count: int = hyperparameter(3, least=1)
    decay: float = hyperparameter(5e-4)
    """Weight decay for Adam."""
    persist_inner_state: int = hyperparameter(0, most=1)
    """1: all trajectories and iterations share one Adam state. 0: each trajectory starts with a fresh Adam."""

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with θ - mean_t φ_t."""
        measured = measured_call(model, steps, objective)
        self.check_steps(len(steps))
        length = len(steps) // self.count
        risks: list[Risk] = []
        with buffers(model, self.bn_buffers, self.bn_rate):
            for start in range(0, len(steps), length):
                if self.persist_inner_state:
                    optimizer = self.kept_optimizer("adam", measured.adapted, self.decay)
                else:
                    optimizer = make_optimizer("adam", measured.adapted, self.lr, self.decay)
                part = steps[start : start + length]
                risks += displace(measured, part, stateful(optimizer), 1 / self.count)
        return summarise(steps, risks)

    def check_steps(self, count: int) -> None:
        """Raise an error if the steps cannot be divided evenly among the trajectories."""
        if count % self.count:
            raise MedicError(
                f"cannot divide {count} steps evenly among {self.count} trajectories: "
                "set --repeat to a multiple of --hparams count"
            )

    def interpolation_factor(self, rate: float, tasks: int) -> float:
        """Return the outer learning rate, at most 1, because `p.grad` is a displacement."""
        return min(1.0, rate)
