"""CrossMatch (Zhu and Li 2022): gradient ascent generates harder images and images of unknown classes.

Our interpretation: no code is public. The formulas for the ascent of unknown images and for the agreement of the
classifiers are ours.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medic.errors import MedicError
from medic.objectives import CE, OBJECTIVES, OVA, Objective, ObjectiveKind, Risk, Setup, ce
from medic.objectives.losses import acceptance
from medic.objectives.objective import features_of
from medic.systems.base import Method
from medic.tasks import Step
from medic.utils.modules import evaluating, statistics_kept
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter

TURNOVER = 16
"""Number of steps after which all images in the pools have been replaced."""


@dataclass(eq=False)
class CrossMatch(Objective):
    """The losses on a step and on a pool of harder images x⁺, plus two losses on a pool of unknown images x_u.

    With softmax p, one-vs-all probabilities q_k and features f, the penalty is the mean over the pools of

        losses(x⁺, y) + lam_n · L_neg(x_u) + lam_c · L_cc(x_u)
        L_neg = -(1/C) Σ_k log(1 - q_k),   L_cc = (1/C) Σ_k (p_k - q_k)²

    x⁺ and x_u start from an image x₀ of a step. `ascents` gradient steps of size `eta`, within the pixel range,
    maximise

        known:    CE(x, y) - gamma · ‖f(x) - f(x₀)‖² / F
        unknown:  (1/C) Σ_k log(1 - q_k(x)) + H(p(x)) - gamma · ‖f(x) - f(x₀)‖² / F

    Dividing by F, the number of features, keeps the distance independent of the backbone. Each pool holds as many
    images as a step. Each step replaces 1 / `TURNOVER` of the images, so all steps have the same cost.
    """

    lam_n: float = hyperparameter(1.0)
    lam_c: float = hyperparameter(1.0)
    eta: float = hyperparameter(1.0)
    gamma: float = hyperparameter(1.0)
    ascents: int = hyperparameter(15, least=1)
    known: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    unknown: Tensor = field(init=False)
    written: Tensor = field(init=False)
    inspects_backbone = True
    needs = ("features", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.setup: Setup | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Allocate empty pools."""
        super().prepare(model, setup)
        self.setup = setup
        for name in ("known", "unknown"):
            self.register_buffer(name, torch.zeros(setup.images, *setup.shape))
        self.register_buffer("labels", torch.zeros(setup.images, dtype=torch.int64))
        # The total number written: modulo the pool size, it is the next index.
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Compute the risk of a step, generate new pool images from it, and add the loss on the pools."""
        self.ready_setup()
        risk = super().forward(model, step)
        self._renew(model, step)
        return risk.plus(self._measure_pools(model, step))

    def ready_setup(self) -> Setup:
        """Return the setup, or raise an error if `prepare` has not been called."""
        if self.setup is None:
            raise MedicError("CrossMatch is not prepared: call objective.prepare(model, setup) before training")
        return self.setup

    def ascend(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Generate known and unknown images by gradient ascent, from inputs of shape (N, …) and N classes."""
        setup = self.ready_setup()
        low, high = (setup.to_inputs(x.new_full((1, 1, 1, 1), pixel)) for pixel in (0.0, 1.0))
        both, start = torch.cat([x, x]), None
        with evaluating(model), torch.enable_grad():
            for _ in range(self.ascents):
                both = both.detach().requires_grad_()
                output = Output.of(model(both))
                with torch.autocast(x.device.type, enabled=False):
                    features = features_of(output)
                    start = features.detach() if start is None else start
                    first, second = _halves(output)
                    moved = (features - start).square().mean(1)
                    gain = torch.cat([ce(first, y), openness(second)]) - self.gamma * moved
                    (gradient,) = torch.autograd.grad(gain.sum(), both)
                    both = (both.detach() + self.eta * gradient).clamp(low, high)
        known, unknown = both.chunk(2)
        return known, unknown

    @torch.no_grad()
    def _renew(self, model: nn.Module, step: Step) -> None:
        """Replace the oldest pool images with new ones, generated from a few random images in a step."""
        count = min(max(1, len(self.labels) // TURNOVER), len(step.y))
        chosen = torch.rand(len(step.y), device=step.y.device).argsort()[:count]
        known, unknown = self.ascend(model, step.x[chosen], step.y[chosen])
        places = (self.written + torch.arange(count, device=step.y.device)) % len(self.labels)
        self.known.index_copy_(0, places, known)
        self.unknown.index_copy_(0, places, unknown)
        self.labels.index_copy_(0, places, step.y[chosen])
        self.written += count

    def _measure_pools(self, model: nn.Module, step: Step) -> Tensor:
        """Return the mean loss of the pool images.

        Both pools are forwarded together, because separate batch-norm statistics would distinguish them. The pass does
        not change running statistics. Until the pools are full, images from the step fill the batch.
        """
        labels = self.labels.clone()  # second derivatives need the labels after the pools have changed
        rows = torch.arange(len(labels), device=step.y.device)
        there = rows < self.written
        others = step.x[rows % len(step.x)]
        shape = (-1,) + (1,) * (others.dim() - 1)
        with statistics_kept(model):
            pools = [torch.where(there.view(shape), pool, others) for pool in (self.known, self.unknown)]
            output = Output.of(model(torch.cat(pools)))
        with torch.autocast(step.y.device.type, enabled=False):
            known, unknown = _halves(output)
            hard = torch.stack([loss(known, labels) for loss in self.losses]).sum(0)
            each = hard + self.lam_n * acceptance(unknown) + self.lam_c * disagreement(unknown)
            return torch.where(there, each, 0).sum() / there.sum().clamp(min=1)


def disagreement(output: Output) -> Tensor:
    """Return L_cc = (1/C) Σ_k (p_k - q_k)² per sample, of shape (N,): how much softmax and one-vs-all disagree."""
    return (output.logits.softmax(1) - output.log_odds().sigmoid()).square().mean(1)


def openness(output: Output) -> Tensor:
    """Return (1/C) Σ_k log(1 - q_k) + H(p) per sample, of shape (N,).

    The value is large if all one-vs-all classifiers reject a sample and the softmax is undecided.
    """
    entropy = -(output.logits.softmax(1) * output.logits.log_softmax(1)).sum(1)
    return entropy - acceptance(output)


def _halves(output: Output) -> tuple[Output, Output]:
    """Split outputs into the first and the second half of the samples."""
    half = len(output.logits) // 2
    return output.map(lambda part: part[:half]), output.map(lambda part: part[half:])


OBJECTIVES["crossmatch"] = ObjectiveKind((CE, OVA), ("separate", "shared"), "bcls", CrossMatch)

METHODS = (
    Method(
        "crossmatch",
        "generate harder images, and unknown images that every classifier must reject",
        "objective: extra losses on pools of images generated by gradient ascent",
        "Zhu and Li 2022",
        preset={"objective": "crossmatch"},
        paper="CrossMatch",
        experimental=True,
    ),
)
