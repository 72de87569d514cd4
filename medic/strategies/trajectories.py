"""Several trajectories from the same weights, averaged: MVDG."""

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
    """MVDG (Zhang et al. 2022): trajectories of steps, each from θ with a fresh Adam; moves towards their mean end.

    The steps of an iteration are dealt to `count` trajectories, in order. `p.grad` is θ minus the mean of their ends φ,
    so that an outer SGD of rate ε makes θ + ε (mean φ - θ). `lr` is Adam's.
    """

    count: int = hyperparameter(3, least=1)
    decay: float = hyperparameter(5e-4)
    """Adam's weight decay."""
    persist_inner_state: int = hyperparameter(0, most=1)
    """1 for one Adam whose state all trajectories and iterations share, 0 for fresh ones."""

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
        """Refuse steps that cannot be dealt evenly to the trajectories."""
        if count % self.count:
            raise MedicError(
                f"{count} steps cannot be dealt evenly to {self.count} trajectories: "
                "use a --repeat that is a multiple of --hparams count"
            )

    def interpolation_factor(self, rate: float, tasks: int) -> float:
        """Return the outer rate itself, because `p.grad` is a displacement."""
        return min(1.0, rate)
