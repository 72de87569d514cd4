"""CORAL (Sun and Saenko 2016) between all pairs of domains, as in DomainBed."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.objectives.objective import Penalty, split_features
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, log10


@dataclass(eq=False)
class Coral(Penalty, name="coral"):
    """γ times the mean squared differences between feature means and between covariances, averaged over task pairs."""

    gamma: float = hyperparameter(1.0, search=log10("mmd_gamma", -1, 1))
    compares_tasks = True
    needs = ("features",)
    min_samples = 2

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare the features of each pair of tasks. For a single task, the penalty is 0."""
        if min(step.sizes) < 2:
            raise MedicError(f"CORAL requires at least two samples per task, got {min(step.sizes)}: raise batch_size")
        moments = [(z.mean(0), covariance(z)) for z in split_features(output, step)]
        pairs = [
            (mean - other_mean).square().mean() + (spread - other_spread).square().mean()
            for (mean, spread), (other_mean, other_spread) in itertools.combinations(moments, 2)
        ]
        return self.gamma * torch.stack(pairs).mean() if pairs else tasks.sum() * 0


def covariance(z: Tensor) -> Tensor:
    """Return the unbiased covariance, of shape (F, F), of features of shape (N, F).

    Unlike `torch.cov`, this function does not synchronise with the GPU.
    """
    centred = z - z.mean(0)
    return centred.T @ centred / (len(z) - 1)
