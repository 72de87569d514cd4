"""RSC, representation self-challenging (Huang et al. 2020)."""

import math

import torch
from torch import Tensor, nn

from medic.errors import check_range
from medic.objectives.objective import classify, split_features
from medic.outputs import Output
from medic.tasks import Step


class Rsc(nn.Module):
    """Mutes the features that most support the right logit, for the samples that depend on them most.

    `features` and `samples` are the shares that are muted. What is at the percentile is muted too, so that even a
    share of 0 mutes the largest.
    """

    def __init__(self, features: float = 1 / 3, samples: float = 1 / 3) -> None:
        super().__init__()
        check_range("RSC", most=1, features=features, samples=samples)
        self.features, self.samples = features, samples

    def forward(self, model: nn.Module, output: Output, step: Step) -> Output:
        """What the heads say of the features that are left."""
        z = torch.cat(split_features(output, step))
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            before = classify(model, leaf).logits
            (support,) = torch.autograd.grad(before.gather(1, step.y[:, None]).sum(), leaf)
        with torch.no_grad():
            kept = support < percentile(support, 1 - self.features)
            after = classify(model, leaf * kept).logits
            drop = (before.softmax(1) - after.softmax(1)).gather(1, step.y[:, None])
            kept |= drop < percentile(drop.T, 1 - self.samples)
        return classify(model, z * kept)._replace(stages=output.stages)


def percentile(values: Tensor, share: float) -> Tensor:
    """The value (N, 1) of every row (N, K) that a share of it lies below, interpolated between neighbours."""
    ordered = values.sort(dim=1).values
    position = share * (values.shape[1] - 1)
    below = min(math.floor(position), values.shape[1] - 1)
    above = min(below + 1, values.shape[1] - 1)
    return torch.lerp(ordered[:, below : below + 1], ordered[:, above : above + 1], position - below)
