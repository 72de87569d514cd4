"""V-REx (Krueger et al. 2021): the variance of domain risks."""

import torch
from torch import Tensor

from medic.errors import check_range
from medic.objectives.objective import Penalty
from medic.outputs import Output
from medic.tasks import Step


class VRex(Penalty):
    """w · mean_d (L_d - mean L)², with w = 1 for the first `anneal` steps and `weight` from then on."""

    compares = True
    updates: Tensor

    def __init__(self, weight: float = 10.0, anneal: int = 500) -> None:
        super().__init__()
        check_range("V-REx", weight=weight, anneal=anneal)
        self.weight, self.anneal = weight, anneal
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def restart(self) -> int | None:
        """When the weight changes."""
        return self.anneal

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """The variance of the task risks (m,)."""
        weight = torch.where(self.updates >= self.anneal, self.weight, 1.0)
        self.updates += 1
        return weight * tasks.var(correction=0)
