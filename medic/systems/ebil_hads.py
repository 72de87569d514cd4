"""EBiL-HaDS (Peng et al. 2024): two evidential branches, a follower that weights images, and a held-out hard domain.

Our interpretation: the released code does not match the publication.
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
    """A head with two branches, whose residual blocks have stride 2 and stride 1.

    Each branch consists of its block, batch norm (shared), averaging over positions, dropout, and closed-set and
    one-vs-all layers. Closed-set logits and features come from the first branch. One-vs-all logits are averaged over
    both branches.
    """

    ova = True
    nonlinear = "the 'branches' head applies dropout"
    reads_maps = True

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.blocks = nn.ModuleList(ResidualBlock(channels, stride) for stride in (2, 1))
        self.norm, self.dropout = nn.BatchNorm2d(channels), nn.Dropout(0.1)
        self.heads = nn.ModuleList(Separate(channels, classes) for _ in self.blocks)

    def forward(self, maps: Tensor) -> Output:
        """Return the outputs for maps of shape (N, C_s, H, W), including the outputs of each branch."""
        pooled = [self.norm(block(maps)).mean((2, 3), dtype=self.norm.weight.dtype) for block in self.blocks]
        with torch.autocast(maps.device.type, enabled=False):  # confidences require full precision
            first, second = (head(self.dropout(features)) for head, features in zip(self.heads, pooled, strict=True))
            return Output(first.logits, (first.ova + second.ova) / 2, first.features, branches=(first, second))


class ResidualBlock(nn.Module):
    """ReLU(f(x) + x), where f is two 3x3 convolutions with batch norm and a ReLU in between.

    The number of channels stays the same. With a stride above 1, the shortcut is a 1x1 convolution with the same
    stride, followed by batch norm.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = _convolution(channels, 3, 1), nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(_convolution(channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Transform maps of shape (N, C, H, W) to shape (N, C, ⌈H / stride⌉, ⌈W / stride⌉)."""
        residual = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(residual + self.shortcut(x))


def _convolution(channels: int, side: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, channels, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


class Follower(AuxiliaryNetwork):
    """A copy of the model's backbone that predicts how confident the model is: w(x) = sigmoid(·) + 1e-5.

    The follower minimises mean (w - conf)² on the images in every iteration, where conf is the model's confidence q_ŷ
    in evaluation mode. It updates batch-norm statistics only if the model does.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__()
        backbone, features = getattr(model, "backbone", None), getattr(model, "features", None)
        if not isinstance(backbone, nn.Module) or not isinstance(features, int):
            raise MedicError(f"EBiL-HaDS requires a medic.Classifier, got {type(model).__name__}")
        self.backbone, self.linear, self.lr = copy.deepcopy(backbone), nn.Linear(features, 1), lr
        self.moves_norms = getattr(model, "norms", "trained") == "trained"

    def make_optimizers(self) -> None:
        """Create an Adam optimizer."""
        self.optimizers = [adam(self.parameters(), self.lr)]

    def forward(self, x: Tensor) -> Tensor:
        """Return image weights w of shape (N, 1)."""
        features = self.backbone(x)
        with torch.autocast(features.device.type, enabled=False):
            return torch.sigmoid(self.linear(features.to(self.linear.weight.dtype))) + 1e-5

    @torch.no_grad()
    def weigh(self, x: Tensor) -> Tensor:
        """Return image weights of shape (N,), without gradients and in evaluation mode."""
        self.eval()
        return torch.squeeze(self(x), 1)

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Take one Adam step on all images in the iteration."""
        x = torch.cat([step.x for step in steps])
        target = confidence(model, x)
        self.train(self.moves_norms)
        descend(functional.mse_loss(self(x).squeeze(1), target), self.optimizers[0])


@dataclass(eq=False)
class EbilHads(Objective):
    """½ Σ_b (CE_b + OVA_b) + mean(w · CE_1) + Σ_b EDL_b - weight · MMD(f_1, f_2) per task, with branches b.

    CE and OVA are the objective's losses. The model treats the follower's weights w as constants, and the follower
    treats the model's confidences as constants.
    """

    weight: float = hyperparameter(1e-3)
    follower_lr: float = hyperparameter(1e-4, above=True)
    inspects_backbone = True
    needs = ("branches", "backbone", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.change is not None:
            raise MedicError("objective 'ebil' does not support methods that change features: use another objective")
        self.follower: Follower | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Create the follower. Raise an error for single-image forward passes, which batch norm cannot handle."""
        if (setup.images if self.passes == "step" else setup.images // setup.tasks) < 2:
            raise MedicError("EBiL-HaDS requires at least 2 images per forward pass: raise --batch-size")
        self.follower = Follower(model, self.follower_lr)  # copy before a penalty taps the backbone
        super().prepare(model, setup)

    def ready_follower(self) -> "Follower":
        """Return the follower, or raise an error if `prepare` has not been called."""
        if self.follower is None:
            raise MedicError("EBiL-HaDS is not prepared: call objective.prepare(model, setup) before training")
        return self.follower

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward a step and compute its risk."""
        follower = self.ready_follower()
        output = self.outputs(model, step)
        weights = follower.weigh(step.x)
        branches = output.branches or ()
        if len(branches) != 2:
            raise MedicError("EBiL-HaDS requires two branches: use Classifier(backbone, classes, 'branches')")
        with torch.autocast(step.y.device.type, enabled=False):
            plain = torch.stack([loss(branch, step.y) for branch in branches for loss in self.losses]).sum(0) / 2
            evidence = torch.stack([evidential_loss(branch.logits, step.y) for branch in branches]).sum(0)
            tasks = step.means(plain + weights * ce(branches[0], step.y) + evidence)
            features = zip(*(split_features(branch, step) for branch in branches), strict=True)
            apart = torch.stack([discrepancy(first, second) for first, second in features])
            return self.penalised(tasks - self.weight * apart, output, step)


@torch.no_grad()
def confidence(model: nn.Module, x: Tensor) -> Tensor:
    """Return the one-vs-all probability q_ŷ of the predicted class, of shape (N,), in evaluation mode."""
    with evaluating(model):
        output = Output.of(model(x)).in_full()
    with torch.autocast(x.device.type, enabled=False):
        return conf_bcls(output).sigmoid().to(output.logits.dtype)


def evidential_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return log Σ_k α_k - log α_y per sample, of shape (N,).

    α_k = exp(z_k) + 1 is the evidence for class k, from logits z of shape (N, C) clamped to ±10.
    """
    evidence = logits.clamp(-10, 10).exp() + 1
    return evidence.sum(1).log() - evidence.gather(1, y[:, None]).squeeze(1).log()


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Return the maximum mean discrepancy between two sets of samples, each of shape (N, F).

    It is mean(K_aa + K_bb - K_ab - K_ba), where K is the sum of five Gaussian kernels exp(-‖·‖² / h). The bandwidths h
    are 1/4 … 4 times the mean squared distance between the 2N samples. No gradient flows through them.
    """
    count, samples = len(first), torch.cat([first, second])
    squares = samples.square().sum(1)
    distance = (squares[:, None] + squares - 2 * samples @ samples.T).clamp(min=0)
    mean = distance.detach().sum() / (2 * count * (2 * count - 1))
    mean = mean.clamp(min=1e-6)  # if all samples are equal
    kernel = torch.stack([(-distance / (mean * 2**power)).exp() for power in range(-2, 3)]).sum(0)
    within = kernel[:count, :count] + kernel[count:, count:]
    return (within - kernel[:count, count:] - kernel[count:, :count]).mean()


@dataclass
class HardDomain(Callback):
    """A callback that holds out the domain that the follower trusts least, as determined by `hardest`.

    Trust is measured on `batches` batches per domain. Each batch is as large as a task and contains the same number of
    images per class. These images are not augmented, but they count towards the training epochs.
    """

    every: int = hyperparameter(10, least=1)
    batches: int = hyperparameter(4, least=1)
    lam: float = hyperparameter(2e-4)
    chosen: Counter[int] = field(default_factory=Counter, init=False)

    def check(self, objective: type[Objective], grid: GridSpec) -> None:
        """Raise an error for an objective without a follower, or a grid that cannot hold out a domain."""
        if not issubclass(objective, EbilHads):
            raise MedicError("hard domain scheduling requires objective 'ebil': omit --objective")
        if (grid.domains or 1) < 2:
            raise MedicError("hard domain scheduling holds out one domain: use --domain-splits 2 or more")

    def on_iteration(self, training: Training) -> None:
        """Measure the trust in every domain, and hold out the hardest domain."""
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
        """Return the fraction of turns in which each domain was held out."""
        return {f"held/{domain}": count / self.chosen.total() for domain, count in sorted(self.chosen.items())}

    def state_dict(self) -> dict[str, Any]:
        """Return how often each domain was held out."""
        return {"chosen": dict(self.chosen)}

    def load_state_dict(self, training: Training, state: dict[str, Any]) -> None:
        """Restore the state. The grid itself restores the held-out domain."""
        self.chosen = Counter(state["chosen"])


def hardest(weights: Mapping[int, float], chosen: Mapping[int, int], lam: float) -> int:
    """Return the domain with the lowest exp(1 + w) (0.1 + lam · s).

    w is the mean weight of the domain, and s the fraction of turns in which it was chosen.
    """
    total = max(1, sum(chosen.values()))
    return min(weights, key=lambda domain: exp(1 + weights[domain]) * (0.1 + lam * chosen.get(domain, 0) / total))


OBJECTIVES["ebil"] = ObjectiveKind((CE, OVA), ("branches",), "bcls", EbilHads)

METHODS = (
    Method(
        "ebil-hads",
        "hold out the domain that a second network trusts least; two evidential branches",
        "head and objective: MEDIC with two branches, a network that weights images, and a held-out domain",
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
