"""CORAL (Sun and Saenko 2016) between all pairs of domains, as DomainBed has it."""

import itertools

import torch
from torch import Tensor

from medic.errors import MedicError, check_range
from medic.objectives.objective import Penalty, split_features
from medic.outputs import Output
from medic.tasks import Step


class Coral(Penalty):
    """γ times the mean squared difference of feature means, plus that of covariances, averaged over pairs of tasks."""

    compares = True
    samples = 2

    def __init__(self, gamma: float = 1.0) -> None:
        super().__init__()
        check_range("CORAL", gamma=gamma)
        self.gamma = gamma

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare the features of every two tasks; one task has nothing to be compared with."""
        if min(step.sizes) < 2:
            raise MedicError(f"CORAL needs two samples of every task or more, not {min(step.sizes)}: raise batch_size")
        moments = [(z.mean(0), covariance(z)) for z in split_features(output, step)]
        pairs = [
            (mean - other_mean).square().mean() + (spread - other_spread).square().mean()
            for (mean, spread), (other_mean, other_spread) in itertools.combinations(moments, 2)
        ]
        return self.gamma * torch.stack(pairs).mean() if pairs else tasks.sum() * 0


def covariance(z: Tensor) -> Tensor:
    """The unbiased covariance (F, F) of features (N, F); torch.cov asks the device whether there are enough."""
    centred = z - z.mean(0)
    return centred.T @ centred / (len(z) - 1)
