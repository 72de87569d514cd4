"""RSC: representation self-challenging (Huang et al. 2020)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.objectives.objective import classify, features_of
from medic.tasks import Step
from medic.utils.modules import DeclaredModule
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, uniform


@dataclass(eq=False)
class Rsc(DeclaredModule):
    """Mutes the features with the strongest support for the true class, in the samples that depend on them most.

    `features` and `samples` are the fractions to mute. Values equal to the percentile are muted too, so even a
    fraction of 0 mutes the largest value.
    """

    features: float = hyperparameter(1 / 3, most=1, search=uniform("rsc_f_drop_factor", 0, 0.5))
    samples: float = hyperparameter(1 / 3, most=1, search=uniform("rsc_b_drop_factor", 0, 0.5))
    needs = ("features", "classify")

    def forward(self, model: nn.Module, output: Output, step: Step) -> Output:
        """Apply the heads to the remaining features."""
        z = features_of(output)
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
    """Return the percentile of each row, of shape (N, 1), for values of shape (N, K). Interpolates linearly."""
    ordered = values.sort(dim=1).values
    position = share * (values.shape[1] - 1)
    below = min(math.floor(position), values.shape[1] - 1)
    above = min(below + 1, values.shape[1] - 1)
    return torch.lerp(ordered[:, below : below + 1], ordered[:, above : above + 1], position - below)
