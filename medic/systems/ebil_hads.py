"""EBiL-HaDS (Peng et al. 2024): two evidential branches, a follower that weighs images, and a held-out hard domain.

Our reading: the released code does not do what the publication describes.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models.heads import Head, Separate
from medic.objectives import CE, OBJECTIVES, OVA, AuxiliaryNetwork, Objective, ObjectiveKind, Risk, Setup, ce
from medic.objectives.auxiliary import adam, descend
from medic.objectives.objective import split_features
from medic.openset.scores import conf_bcls
from medic.strategies import TwoStep
from medic.systems.base import Method
from medic.tasks import GridSpec, Step
from medic.training import Callback, Inference, Training
from medic.utils.modules import evaluating
from medic.utils.outputs import Output
from medic.utils.parts import Part, hyperparameter


class Branches(Head, name="branches"):
    """Two residual blocks on a map, of stride 2 and stride 1, each followed by both logits.

    A branch is block, shared batch norm, average over positions, dropout, heads. Closed-set logits and features are
    those of the first branch, one-vs-all logits the means over both.
    """

    ova = True
    nonlinear = "those of EBiL's branches, behind dropout, are not"
    reads_maps = True

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.blocks = nn.ModuleList(ResidualBlock(channels, stride) for stride in (2, 1))
        self.norm, self.dropout = nn.BatchNorm2d(channels), nn.Dropout(0.1)
        self.heads = nn.ModuleList(Separate(channels, classes) for _ in self.blocks)

    def forward(self, maps: Tensor) -> Output:
        """Return the outputs of maps (N, C_s, H, W), with those of both branches."""
        pooled = [self.norm(block(maps)).mean((2, 3), dtype=self.norm.weight.dtype) for block in self.blocks]
        with torch.autocast(maps.device.type, enabled=False):  # confidences need full precision
            first, second = (head(self.dropout(features)) for head, features in zip(self.heads, pooled, strict=True))
            return Output(first.logits, (first.ova + second.ova) / 2, first.features, branches=(first, second))


class ResidualBlock(nn.Module):
    """ReLU(f(x) + x), f two 3x3 convolutions with batch norm, and a ReLU between them, that keep the channels.

    With a stride above 1 the shortcut is a 1x1 convolution of that stride, with batch norm.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = _convolution(channels, 3, 1), nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(_convolution(channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, ⌈H / stride⌉, ⌈W / stride⌉)."""
        residual = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(residual + self.shortcut(x))


def _convolution(channels: int, side: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, channels, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


class Follower(AuxiliaryNetwork):
    """A copy of the model's backbone that learns how sure the model is of an image: w(x) = sigmoid(·) + 1e-5.

    It descends mean (w - conf)² on the images of every iteration, conf the model's confidence q_ŷ in evaluation mode.
    Its batch-norm statistics move if those of the model do.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__()
        backbone, features = getattr(model, "backbone", None), getattr(model, "features", None)
        if not isinstance(backbone, nn.Module) or not isinstance(features, int):
            raise MedicError(f"EBiL-HaDS copies the backbone of a Classifier, not of a {type(model).__name__}")
        self.backbone, self.linear, self.lr = copy.deepcopy(backbone), nn.Linear(features, 1), lr
        self.moves_norms = getattr(model, "norms", "trained") == "trained"

    def make_optimizers(self) -> None:
        """Make an Adam."""
        self.optimizers = [adam(self.parameters(), self.lr)]

    def forward(self, x: Tensor) -> Tensor:
        """Return the weights w (N, 1) of images."""
        features = self.backbone(x)
        with torch.autocast(features.device.type, enabled=False):
            return torch.sigmoid(self.linear(features.to(self.linear.weight.dtype))) + 1e-5

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """Return the weights (N,) as constants, in evaluation mode, where each depends on its image alone."""
        self.eval()
        return torch.squeeze(self(x), 1)

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Take one Adam step on all images of the iteration."""
        x = torch.cat([step.x for step in steps])
        target = confidence(model, x)
        self.train(self.moves_norms)
        descend(functional.mse_loss(self(x).squeeze(1), target), self.optimizers[0])


@dataclass(eq=False)
class EbilHads(Objective):
    """Per task ½ Σ_b (CE_b + OVA_b) + mean(w · CE_1) + Σ_b EDL_b - weight · MMD(f_1, f_2), b the two branches.

    CE and OVA are the losses it is made with. The follower's weights w are constants here, and the model's confidences
    are constants for the follower.
    """

    weight: float = hyperparameter(1e-3)
    follower_lr: float = hyperparameter(1e-4, above=True)
    inspects_backbone = True
    needs = ("branches", "backbone", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.change is not None:
            raise MedicError("objective 'ebil' reads maps, so features cannot be changed: use another --objective")
        self.follower: Follower | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make the follower; refuse forward passes of one image, which has no batch-norm statistics."""
        if (setup.images if self.passes == "step" else setup.images // setup.tasks) < 2:
            raise MedicError("the branches of EBiL-HaDS need batches of at least two images: use --batch-size 2")
        self.follower = Follower(model, self.follower_lr)  # before a penalty taps the maps of the backbone
        super().prepare(model, setup)

    def ready_follower(self) -> "Follower":
        """Return the follower, which `prepare` makes."""
        if self.follower is None:
            raise MedicError("EBiL-HaDS is not prepared: call objective.prepare(model, setup) before training")
        return self.follower

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward a step and measure it."""
        follower = self.ready_follower()
        output = self.outputs(model, step)
        weights = follower.weigh(step.x)
        branches = output.branches or ()
        if len(branches) != 2:
            raise MedicError("EBiL-HaDS needs a model with two branches: Classifier(backbone, classes, 'branches')")
        with torch.autocast(step.y.device.type, enabled=False):
            plain = torch.stack([loss(branch, step.y) for branch in branches for loss in self.losses]).sum(0) / 2
            evidence = torch.stack([evidential_loss(branch.logits, step.y) for branch in branches]).sum(0)
            tasks = step.means(plain + weights * ce(branches[0], step.y) + evidence)
            features = zip(*(split_features(branch, step) for branch in branches), strict=True)
            apart = torch.stack([discrepancy(first, second) for first, second in features])
            return self.penalised(tasks - self.weight * apart, output, step)


@torch.no_grad()
def confidence(model: nn.Module, x: Tensor) -> Tensor:
    """Return the probability q_ŷ (N,) of the predicted class of images, in evaluation mode."""
    with evaluating(model):
        output = Output.of(model(x)).in_full()
    with torch.autocast(x.device.type, enabled=False):
        return conf_bcls(output).sigmoid().to(output.logits.dtype)


def evidential_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return log Σ_k α_k - log α_y per sample (N,), α_k = exp(z_k) + 1 the evidence of logits (N, C) clamped to ±10."""
    evidence = logits.clamp(-10, 10).exp() + 1
    return evidence.sum(1).log() - evidence.gather(1, y[:, None]).squeeze(1).log()


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Return the maximum mean discrepancy between two sets of samples (N, F): mean(K_aa + K_bb - K_ab - K_ba).

    K is the sum of five Gaussian kernels exp(-‖·‖² / h); the h are 1/4 … 4 times the mean squared distance between two
    of all 2N samples, which is constant for the gradient.
    """
    count, samples = len(first), torch.cat([first, second])
    squares = samples.square().sum(1)
    distance = (squares[:, None] + squares - 2 * samples @ samples.T).clamp(min=0)
    mean = distance.detach().sum() / (2 * count * (2 * count - 1))
    mean = mean.clamp(min=1e-6)  # where all samples are equal
    kernel = torch.stack([(-distance / (mean * 2**power)).exp() for power in range(-2, 3)]).sum(0)
    within = kernel[:count, :count] + kernel[count:, count:]
    return (within - kernel[:count, count:] - kernel[count:, :count]).mean()


@dataclass
class HardDomain(Callback):
    """Holds out one domain in the grid: the one that the follower trusts least, by `hardest`.

    Trust is measured on `batches` batches per domain, each as large as a task, with equal counts per class. Images are
    not augmented and come from the same epochs as the training images.
    """

    every: int = hyperparameter(10, least=1)
    batches: int = hyperparameter(4, least=1)
    lam: float = hyperparameter(2e-4)
    chosen: Counter[int] = field(default_factory=Counter, init=False)

    def check(self, objective: type[Objective], grid: GridSpec) -> None:
        """Refuse an objective without a follower, and a grid that cannot hold out a domain."""
        if not issubclass(objective, EbilHads):
            raise MedicError("hard domain scheduling needs the follower of 'ebil': leave out --objective")
        if (grid.domains or 1) < 2:
            raise MedicError("hard domain scheduling holds out a domain: use --domain-splits 2 or more")

    def on_iteration(self, training: Training) -> None:
        """Measure every domain, and hold out the hardest."""
        grid, cells = training.grid, training.cells
        follower = cast(EbilHads, training.objective).ready_follower()
        infer = Inference(follower, training.images, training.preprocessing, training.device, training.precision)
        means = {}
        for domain in sorted({cell[0] for cell in cells.keys}):
            own = [cell for cell in cells.keys if cell[0] == domain]
            drawn = torch.cat([grid.sample(cells, own, training.batch_size) for _ in range(self.batches)])
            means[domain] = float(infer(training.samples.indices[drawn]).logits.mean())
        grid.held_out = hardest(means, self.chosen, self.lam)
        self.chosen[grid.held_out] += 1

    def metrics(self) -> dict[str, float]:
        """Return how often each domain, by number, was held out so far."""
        return {f"held/{domain}": count / self.chosen.total() for domain, count in sorted(self.chosen.items())}

    def state_dict(self) -> dict[str, Any]:
        """Return how often each domain was chosen."""
        return {"chosen": dict(self.chosen)}

    def load_state_dict(self, training: Training, state: dict[str, Any]) -> None:
        """Restore the state; the grid restores the held-out domain itself."""
        self.chosen = Counter(state["chosen"])


def hardest(weights: Mapping[int, float], chosen: Mapping[int, int], lam: float) -> int:
    """Return the domain with the least exp(1 + w) (0.1 + lam · s): w its mean weight, s how often it was chosen."""
    total = max(1, sum(chosen.values()))
    return min(weights, key=lambda domain: exp(1 + weights[domain]) * (0.1 + lam * chosen.get(domain, 0) / total))


OBJECTIVES["ebil"] = ObjectiveKind((CE, OVA), ("branches",), "bcls", EbilHads)

METHODS = (
    Method(
        "ebil-hads",
        "the domain that a follower trusts least is held out; two evidential branches",
        "head and objective: MEDIC with two branches, a network that weighs images, and a held-out domain",
        "Peng et al. 2024",
        preset={"objective": "ebil"},
        grid=GridSpec(2, 2, pairing="diagonal"),
        strategy=Part("ebil-hads", TwoStep, {"second_order": True, "lr": 1e-3}),
        forward="task",
        min_domains=2,
        callback=Part("hard-domain", HardDomain),
        experimental=True,
    ),
)
