"""V-REx (Krueger et al. 2021): the variance of the domain risks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from medic.objectives.objective import Penalty
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, log10


@dataclass(eq=False)
class VRex(Penalty, name="vrex"):
    """w · mean_d (L_d - mean L)², where w is 1 in the first `anneal` steps and `weight` afterwards."""

    weight: float = hyperparameter(10.0, search=log10("vrex_lambda", -1, 5))
    anneal: int = hyperparameter(500, search=log10("vrex_penalty_anneal_iters", 0, 4, whole=True), run_length=5000)
    updates: Tensor = field(init=False)
    compares_tasks = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def restart_step(self) -> int | None:
        """The step at which the weight changes."""
        return self.anneal

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Return the weighted variance of task risks of shape (m,)."""
        weight = torch.where(self.updates >= self.anneal, self.weight, 1.0)
        self.updates += 1
        return weight * tasks.var(correction=0)
