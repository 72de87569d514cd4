"""HyProMeta (Peng et al. 2024): open set domain generalization with label noise.

Our interpretation: neither code nor formulas are public.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from medic.data import Samples
from medic.errors import MedicError
from medic.models.heads import Head, linear_layer
from medic.objectives import CE, OBJECTIVES, OVA, Objective, ObjectiveKind, Risk, Setup
from medic.objectives.losses import acceptance
from medic.objectives.objective import features_of
from medic.strategies import TwoStep
from medic.systems.base import Method
from medic.tasks import GridSpec, Step
from medic.training import Callback, Training
from medic.utils.modules import statistics_kept
from medic.utils.outputs import Output
from medic.utils.parts import Part, hyperparameter

logger = logging.getLogger(__name__)

BORDER = 1 - 1e-5
"""Maximum norm of a point in the Poincaré ball of curvature -1. At norm 1, distances are infinite."""

AT_ONCE = 4096
"""Number of samples whose distances to all prototypes are computed at once."""


class Prompted(Head, name="prompted"):
    """A head with C + 1 closed-set logits, the last for prompted images, and 2C one-vs-all logits."""

    ova = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.close_head, self.ova_head = linear_layer(features, classes + 1), linear_layer(features, 2 * classes)

    def forward(self, features: Tensor) -> Output:
        """Return logits for features of shape (N, F)."""
        logits = self.close_head(features)
        ova = self.ova_head(features).view(len(logits), 2, -1)
        return Output(logits[:, :-1], ova, features, unknown=logits[:, -1])


@dataclass(eq=False)
class HyProMeta(Objective):
    """An objective that meta-trains on clean and meta-tests on noisy samples, with a prompt v for a new category.

    In the first step of an iteration, each task averages its losses over clean samples, and in later steps over noisy
    samples. A task without such samples averages over all its samples. The prompt is learned and turns any image x into
    x + v, an image of the new category. Each prompted image adds `prompt · CE(x + v, C)` over the C + 1 closed-set
    outputs and `reject · mean_k -log(1 - q_k(x + v))`, where q_k is the positive probability of one-vs-all classifier
    k.
    """

    prompt: float = hyperparameter(0.1)
    reject: float = hyperparameter(1.0)
    v: nn.Parameter | None = field(init=False)
    inspects_backbone = True
    needs = ("unknown", "features", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_parameter("v", None)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Initialise the prompt with noise at input scale, so that prompted images differ from the start."""
        super().prepare(model, setup)
        self.v = nn.Parameter(torch.randn(setup.shape))

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Compute the risk of a step, and add the losses of its prompted images, averaged per task and over tasks."""
        if self.v is None:
            raise MedicError("HyProMeta is not prepared: call objective.prepare(model, setup) before training")
        risk = super().forward(model, step)
        tasks = [step] if self.passes == "step" else step.tasks()
        with statistics_kept(model):
            output = Output.cat([Output.of(model(task.x + self.v)) for task in tasks])
        with torch.autocast(step.y.device.type, enabled=False):
            return risk.plus(step.means(self.prompt * _as_new(output) + self.reject * acceptance(output)).mean())

    def average(self, losses: Tensor, step: Step) -> Tensor:
        """Average losses over the clean or noisy samples of each task, giving shape (m,).

        A task without such samples averages over all its samples.
        """
        if "clean" not in step.attributes:
            return super().average(losses, step)
        clean = step.attributes["clean"] > 0
        wanted = clean if step.index == 0 else ~clean
        share = step.means(wanted.to(losses))
        # A share is 0 or at least 1 / N, so the clamp only avoids division by 0.
        chosen = step.means(torch.where(wanted, losses, 0)) / share.clamp(min=1 / len(losses))
        return torch.where(share > 0, chosen, step.means(losses))


def _as_new(output: Output) -> Tensor:
    """Return the cross-entropy -log p_C of the last of C + 1 outputs, of shape (N,)."""
    if output.unknown is None:
        raise MedicError("objective 'hyprometa' requires --head prompted")
    return torch.cat([output.logits, output.unknown[:, None]], dim=1).logsumexp(1) - output.unknown


@dataclass
class Prototypes(Callback):
    """A callback that corrects labels once per epoch, based on the nearest class prototype.

    A sample whose label differs from that of its nearest prototype is marked as noisy and receives the prototype's
    label. Each sample's `clean` attribute is 1 or 0. The callback uses only training labels and the current model.

    In the first `trust` epochs, all labels are treated as clean: a model that has learned little would mark half of the
    clean labels as noisy, and then learn from the wrong labels.
    """

    trust: int = hyperparameter(40)

    def start(self, training: Training) -> None:
        """Mark all labels as clean, and compute the epoch length."""
        self.original_label = self.label = training.samples.label
        self.clean = torch.ones_like(self.original_label)
        self.prototypes: Tensor | None = None
        self.every = max(1, len(self.original_label) // (training.grid.tasks * training.batch_size))
        self._infer = training.inference()
        logger.info("label correction starts at iteration %d (epoch %d)", self.trust * self.every, self.trust)
        training.samples = self._samples(training)

    def on_iteration(self, training: Training) -> None:
        """Compare all training samples with the class prototypes, and correct their labels."""
        if training.iteration < self.trust * self.every:
            return
        output = self._infer(training.samples.indices)
        points = embed(features_of(output).cpu().double())
        domain, classes = training.samples.domain, output.logits.shape[1]
        trusted = self.clean > 0
        updated = find_prototypes(points[trusted], self.original_label[trusted], domain[trusted], classes)
        self.prototypes = updated if self.prototypes is None else torch.where(updated.isnan(), self.prototypes, updated)
        nearest = find_nearest(points, self.prototypes)
        self.clean = (nearest == self.original_label).long()
        self.label = keep_cells(nearest, self.original_label, domain, classes)
        training.relabel(self._samples(training))

    def metrics(self) -> dict[str, float]:
        """Return the fraction of training samples marked as noisy."""
        return {"noisy": 1 - float(self.clean.double().mean())}

    def state_dict(self) -> dict[str, Any]:
        """Return the labels, the `clean` attribute and the prototypes."""
        return {"label": self.label, "clean": self.clean, "prototypes": self.prototypes}

    def load_state_dict(self, training: Training, state: dict[str, Any]) -> None:
        """Restore the state and relabel the samples."""
        self.label, self.clean, self.prototypes = state["label"], state["clean"], state["prototypes"]
        training.relabel(self._samples(training))

    def _samples(self, training: Training) -> Samples:
        """Return the training samples with their current labels."""
        samples = training.samples
        return replace(samples, label=self.label, attributes={**samples.attributes, "clean": self.clean})


def embed(features: Tensor) -> Tensor:
    """Map features of shape (N, F) to points in the Poincaré ball. Clips feature norms to 1 first."""
    return exp0(features / features.norm(dim=1, keepdim=True).clamp(min=1))


def find_prototypes(points: Tensor, label: Tensor, domain: Tensor, classes: int) -> Tensor:
    """Return class prototypes of shape (C, F) from points of shape (N, F).

    A prototype is the mean of the class means in each domain. It is NaN for a class without points.
    """
    prototypes = torch.full((classes, points.shape[1]), torch.nan, dtype=points.dtype)
    for c in label.unique().tolist():
        mine, where = points[label == c], domain[label == c]
        prototypes[c] = mean(torch.stack([mean(mine[where == d]) for d in where.unique()]))
    return prototypes


def find_nearest(points: Tensor, prototypes: Tensor) -> Tensor:
    """Return the class of the nearest prototype for each point, of shape (N,). Skips NaN prototypes.

    Points have shape (N, F) and prototypes shape (C, F).
    """
    lacking = prototypes.isnan().any(1)
    parts = points.split(AT_ONCE)
    return torch.cat([distance(part, prototypes).masked_fill(lacking, torch.inf).argmin(1) for part in parts])


def keep_cells(label: Tensor, original: Tensor, domain: Tensor, classes: int) -> Tensor:
    """Restore original labels, of shape (N,), where a domain would otherwise lose its last sample of a class.

    Without this, the grid could not split the classes of the domain.
    """
    cells = classes * (1 + int(domain.max()))
    while True:
        present = torch.bincount(classes * domain + label, minlength=cells) > 0
        lost = ~present[classes * domain + original]
        if not bool(lost.any()):
            return label
        label = torch.where(lost, original, label)


def exp0(u: Tensor) -> Tensor:
    """Map tangent vectors u at the origin, of shape (…, F), to the ball: tanh(‖u‖) u / ‖u‖, within `BORDER`."""
    length: Tensor = u.norm(dim=-1, keepdim=True)
    return u * (length.tanh().clamp(max=BORDER) / length.clamp(min=torch.finfo(u.dtype).tiny))


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return distances of shape (N, M) between points of shape (N, F) and (M, F).

    The distance is arcosh(1 + 2 ‖a - b‖² / ((1 - ‖a‖²) (1 - ‖b‖²))).
    """
    first, second = a.square().sum(1)[:, None], b.square().sum(1)
    apart = (first + second - 2 * a @ b.T).clamp(min=0)
    excess = 2 * apart / ((1 - first) * (1 - second))
    return (excess + (excess * (excess + 2)).sqrt()).log1p()  # arcosh(1 + t), accurate for small t


def mean(points: Tensor) -> Tensor:
    """Return the hyperbolic mean, of shape (…, F), of points of shape (…, N, F).

    The mean is the average m = Σ γ a_K / Σ γ in the Klein model, with a_K = 2a / (1 + ‖a‖²) and Lorentz factors
    γ = 1 / √(1 - ‖a_K‖²). It is mapped back to the ball as m / (1 + √(1 - ‖m‖²)).
    """
    squares = points.square().sum(-1, keepdim=True)
    # γ = (1 + ‖a‖²) / (1 - ‖a‖²) and γ a_K = 2a / (1 - ‖a‖²) avoid the root of a difference near 0.
    average = (2 * points / (1 - squares)).sum(-2) / ((1 + squares) / (1 - squares)).sum(-2)
    return average / (1 + (1 - average.square().sum(-1, keepdim=True)).clamp(min=0).sqrt())


OBJECTIVES["hyprometa"] = ObjectiveKind((CE, OVA), ("prompted",), "bcls", HyProMeta)

METHODS = (
    Method(
        "hyprometa",
        "correct labels that hyperbolic prototypes contradict, and meta-test on them",
        "objective and labels: MEDIC from clean to noisy images, and an extra class for prompted images",
        "Peng et al. 2024",
        # SWAD can stop before the first correction.
        preset={"objective": "hyprometa", "averaging": "none"},
        grid=GridSpec(2, 2, axes={"clean": 1}, pairing="diagonal"),
        strategy=Part("hyprometa", TwoStep, {"second_order": True}),
        forward="task",
        callback=Part("prototypes", Prototypes),
        experimental=True,
    ),
)
