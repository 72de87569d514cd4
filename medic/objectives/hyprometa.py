"""HyProMeta (Peng et al. 2024): open set domain generalization under wrong labels.

Our reading: neither code nor formulas are public. Wrong labels are found by `medic.training.advisors.prototypes`.
"""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_range
from medic.modes import statistics_kept
from medic.objectives.losses import acceptance
from medic.objectives.objective import Loss, Objective, Parts, Risk, Setup
from medic.outputs import Output
from medic.tasks import Step


class HyProMeta(Objective):
    """Meta-train on clean samples and meta-test on noisy ones; a learnt prompt v makes a category out of any image.

    The first step of an iteration averages the losses of each task over its clean samples, every later one over its
    noisy ones; a task that has none of them averages over all. Every image, prompted as x + v, adds
    `prompt · CE(x + v, C)` over the C + 1 close-set outputs and `reject · mean_k -log(1 - q_k(x + v))`, q_k the
    positive probability of one-vs-all classifier k.
    """

    inside = True
    v: nn.Parameter | None

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        prompt: float = 0.1,
        reject: float = 1.0,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        check_range("HyProMeta", prompt=prompt, reject=reject)
        self.prompt, self.reject = prompt, reject
        self.register_parameter("v", None)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Start with a prompt of noise, as strong as inputs are, so that what is prompted differs from the first on."""
        super().prepare(model, setup)
        self.v = nn.Parameter(torch.randn(setup.shape))

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Measure the step, and the same images with the prompt."""
        return super().forward(model, step).plus(self._prompted(model, step))

    def average(self, losses: Tensor, step: Step) -> Tensor:
        """The mean loss (m,) of each task's clean samples, or noisy ones, or of all where it has none of them."""
        if "clean" not in step.attributes:
            return super().average(losses, step)
        clean = step.attributes["clean"] > 0
        wanted = clean if step.index == 0 else ~clean
        share = step.means(wanted.to(losses))
        # A share is 0 or at least 1 / N.
        chosen = step.means(torch.where(wanted, losses, 0)) / share.clamp(min=1 / len(losses))
        return torch.where(share > 0, chosen, step.means(losses))

    def _prompted(self, model: nn.Module, step: Step) -> Tensor:
        """What prompted images cost, averaged per task and over the tasks."""
        if self.v is None:
            raise MedicError("HyProMeta's prompt has the shape of an input: call prepare(model, setup) before training")
        tasks = [step] if self.passes == "step" else step.tasks()
        with statistics_kept(model):
            output = Output.cat([Output.of(model(task.x + self.v)) for task in tasks])
        with torch.autocast(step.y.device.type, enabled=False):
            return step.means(self.prompt * _as_new(output) + self.reject * acceptance(output)).mean()


def _as_new(output: Output) -> Tensor:
    """Cross-entropy (N,) of the C + 1 outputs against the last: -log p_C."""
    if output.unknown is None:
        raise MedicError("HyProMeta needs an output for prompted images: --head prompted")
    return torch.cat([output.logits, output.unknown[:, None]], dim=1).logsumexp(1) - output.unknown
