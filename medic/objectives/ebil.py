"""EBiL-HaDS (Peng et al. 2024): evidential branches that differ, and a follower that says how reliable an image is.

Our reading: the code that was released does not do what its publication describes.
"""

import copy
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, check_range
from medic.modes import evaluating
from medic.objectives.evidential import discrepancy, evidential_loss
from medic.objectives.losses import ce
from medic.objectives.objective import Loss, Objective, Parts, Risk, Setup, split_features
from medic.objectives.player import Player, adam, descend
from medic.openset.scores import conf_bcls
from medic.outputs import Output
from medic.tasks import Step

LEAST = 1e-5


class Follower(Player):
    """A network of the backbone's kind that learns how sure the model is of an image: w(x) = sigmoid(·) + 1e-5.

    It descends mean (w - conf)², conf the model's confidence q_ŷ in evaluation mode, on the images of every iteration.
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.backbone: nn.Module | None = None
        self.moves_norms = True

    def prepare(self, model: nn.Module) -> None:
        """Start from a copy of the model's backbone, and from its policy for batch-norm statistics."""
        backbone, features = getattr(model, "backbone", None), getattr(model, "features", None)
        if not isinstance(backbone, nn.Module) or not isinstance(features, int):
            raise MedicError(f"EBiL-HaDS copies the backbone of a Classifier, which {type(model).__name__} is not")
        self.backbone, self.linear = copy.deepcopy(backbone), nn.Linear(features, 1)
        self.moves_norms = getattr(model, "norms", "trained") == "trained"

    def start(self) -> None:
        """Adam."""
        self.optimizers = [adam(self.parameters(), self.lr)]

    def forward(self, x: Tensor) -> Tensor:
        """The weights w (N, 1) of images."""
        if self.backbone is None:
            raise MedicError("EBiL-HaDS was not prepared: objective.prepare(model, setup) before training")
        features = self.backbone(x)
        with torch.autocast(features.device.type, enabled=False):
            weights: Tensor = self.linear(features.to(self.linear.weight.dtype)).sigmoid() + LEAST
            return weights

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """The weights (N,) as constants, in evaluation mode: each depends on its image alone."""
        self.eval()
        weights: Tensor = self(x).squeeze(1)
        return weights

    def play(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """One step of Adam on all images of the iteration."""
        x = torch.cat([step.x for step in steps])
        target = confidence(model, x)
        self.train(self.moves_norms)
        loss = functional.mse_loss(self(x).squeeze(1), target)
        descend(loss, self.optimizers[0])
        self.eval()


class EbilHads(Objective):
    """Per task ½ Σ_b (CE_b + OVA_b) + mean(w · CE_1) + Σ_b EDL_b - weight · MMD(f_1, f_2), b the two branches.

    CE and OVA are whatever losses it is made with. The weights w are the follower's, and constants here; so are the
    model's confidences for the follower.
    """

    inside = True

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        weight: float = 1e-3,
        follower_lr: float = 1e-4,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        if self.change is not None:
            raise MedicError("EBiL-HaDS reads maps, so features cannot be changed: use another objective than 'ebil'")
        check_range("EBiL-HaDS", weight=weight)
        check_range("EBiL-HaDS", above=True, follower_lr=follower_lr)
        self.weight = weight
        self.follower = Follower(follower_lr)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make the follower; refuse forward passes of one image, which batch norm has no statistics of."""
        if (setup.images if self.passes == "step" else setup.images // setup.tasks) < 2:
            raise MedicError("the branches of EBiL-HaDS normalise batches of two images or more: use --batch-size 2")
        self.follower.prepare(model)  # before a penalty asks the backbone for more than its features
        super().prepare(model, setup)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward the step and measure it."""
        output = self.outputs(model, step)
        weights = self.follower.weigh(step.x)
        with torch.autocast(step.y.device.type, enabled=False):
            branches = two_branches(output)
            plain = torch.stack([loss(branch, step.y) for branch in branches for loss in self.losses]).sum(0) / 2
            evidence = torch.stack([evidential_loss(branch.logits, step.y) for branch in branches]).sum(0)
            tasks = step.means(plain + weights * ce(branches[0], step.y) + evidence)
            return self.penalised(tasks - self.weight * discrepancies(branches, step), output, step)


def two_branches(output: Output) -> tuple[Output, Output]:
    """What both branches of a model say."""
    if output.branches is None or len(output.branches) != 2:
        raise MedicError("EBiL-HaDS needs a model with two branches: Classifier(backbone, classes, 'branches')")
    first, second = output.branches
    return first, second


def discrepancies(branches: tuple[Output, Output], step: Step) -> Tensor:
    """The discrepancy of the features of two branches, in every task (m,)."""
    first, second = (split_features(branch, step) for branch in branches)
    return torch.stack([discrepancy(a, b) for a, b in zip(first, second, strict=True)])


@torch.no_grad()
def confidence(model: nn.Module, x: Tensor) -> Tensor:
    """The probability q_ŷ (N,) that images are of the class that a model takes them for, in evaluation mode."""
    with evaluating(model):
        output = Output.of(model(x))
    with torch.autocast(x.device.type, enabled=False):
        return conf_bcls(output).sigmoid().to(output.logits.dtype)
