"""CIRL (Lv et al. 2022): features that are invariant to amplitudes, and an adversary that finds the weak ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.errors import MedicError
from medic.models.heads import linear_layer
from medic.objectives import CE, OBJECTIVES, AuxiliaryNetwork, Objective, ObjectiveKind, Risk, Setup
from medic.objectives.auxiliary import descend
from medic.objectives.objective import classify, features_of
from medic.systems.base import Method, Rate
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter

TEMPERATURE = 0.5


class Masker(AuxiliaryNetwork):
    """Maps features to masks between 0 and 1 that say by how much each feature is superior.

    The outputs a_0 of a perceptron are followed by K draws, each fed with the previous one: with Gumbel noise g_i,
    a_i = softmax((a_{i-1} + g_i) / 0.5), and the mask is the largest of a_1 … a_K, feature by feature. It descends the
    `contest` of a model.
    """

    turns: Tensor

    def __init__(self, features: int, draws: int, contest: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        wide = 4 * features
        self.draws, self._contest = draws, contest
        self.network = nn.Sequential(
            *(nn.Dropout(0.5), nn.Linear(features, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            *(nn.Linear(wide, features), nn.BatchNorm1d(features, affine=False)),
        )
        self.register_buffer("turns", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Return the masks (N, F) of features (N, F)."""
        logits: Tensor = self.network(features)
        uniform = torch.rand(self.draws, *logits.shape, dtype=logits.dtype, device=logits.device)
        return largest_draw(logits, uniform.log_().neg_().log_().div_(-TEMPERATURE))

    def make_optimizers(self) -> None:
        """Make an SGD with a constant rate."""
        fused = next(self.parameters()).is_cuda or None
        sgd = torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused)
        self.optimizers = [sgd]

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Take one step that separates superior from inferior features."""
        descend(self._contest(model), *self.optimizers)
        self.turns += 1


@dataclass(eq=False)
class Cirl(Objective):
    """½ CE(c1(F ∘ m)) + ½ CE(c2(F ∘ (1 - m))) + w · factorisation, over images and their mixtures.

    A mixture is an image with part of the amplitudes of another image of the step. F are the features of both, c1 is
    the model's head, c2 a second one, and the masks m come from a `Masker`, which descends
    ½ CE(c1(F ∘ m)) - ½ CE(c2(F ∘ (1 - m))) after every update of the model. All masks are 1 for the first `warmup`
    epochs. The factor w climbs to `weight` within `ramp` epochs; `off_diagonal` belongs to `factorisation`. K is
    `share` times the number of features.
    """

    weight: float = hyperparameter(5.0)
    off_diagonal: float = hyperparameter(0.005)
    share: float = hyperparameter(0.6, most=1, above=True)
    warmup: float = hyperparameter(6.0)
    ramp: float = hyperparameter(5.0)
    inspects_backbone = True
    needs = ("features", "classify", "sizes", "setup")
    lr_scale = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passes != "step" or self.change is not None:
            raise MedicError("objective 'cirl' mixes the images of a step and masks features itself: use --method cirl")
        self._setup: Setup | None = None
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make the second head and the masker."""
        super().prepare(model, setup)
        _check_count(setup.images)
        features, classes = int(model.features), int(model.classes)  # type: ignore[arg-type]
        self._setup = setup
        self.inferior = linear_layer(features, classes)
        self.masker = Masker(features, max(1, int(self.share * features)), self._contest)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward the step with its mixtures, and measure both."""
        if self._setup is None:
            raise MedicError("objective 'cirl' is not prepared: call objective.prepare(model, setup) before training")
        x, y = self._seen[step.index] = self._mixed(step, self._setup), step.y.repeat(2)
        output = Output.of(model(x)).in_full()
        with torch.autocast(y.device.type, enabled=False):  # as for any objective
            features = features_of(output)
            warm = self.masker.turns < self.warmup * self._setup.epoch
            with torch.no_grad():
                mask = self.masker(features)
            superior, inferior = (m.masked_fill(warm, 1.0) for m in (mask, 1 - mask))
            better, worse = self._losses(model, features, y, superior, inferior)
            tasks = step.means(((better + worse) / 2).view(2, -1).mean(0))  # of an image and its mixture
            original = output.map(lambda part: part[: len(step.y)])
            weight = self.weight * ramped(self.masker.turns // self._setup.epoch, self.ramp)
            one, other = features.chunk(2)
            return self.penalised(tasks, original, step).plus(weight * factorisation(one, other, self.off_diagonal))

    @torch.no_grad()
    def _mixed(self, step: Step, setup: Setup) -> Tensor:
        """Return the images of a step followed by their mixtures: (2N, C, H, W)."""
        _check_count(len(step.x))
        pixels = setup.to_pixels(step.x)
        partner, share = random_pairs(len(pixels), pixels)
        mixtures = setup.to_inputs(quantised(mix_amplitudes(pixels, pixels[partner], share)))
        return torch.cat([step.x, mixtures]).contiguous(memory_format=torch.channels_last)

    def _contest(self, model: nn.Module) -> Tensor:
        """Return the loss of the masker on the steps of the iteration."""
        terms = []
        for x, y in self._seen.values():
            with torch.no_grad():
                output = Output.of(model(x)).in_full()
            with torch.autocast(y.device.type, enabled=False):
                features = features_of(output)
                mask = self.masker(features)
                better, worse = self._losses(model, features, y, mask, 1 - mask)
                terms.append((better - worse).mean() / 2)
        self._seen.clear()
        return torch.stack(terms).mean()

    def _losses(
        self, model: nn.Module, features: Tensor, y: Tensor, superior: Tensor, inferior: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (N,) of the model's head and of the second one on features (N, F), with masks (N, F)."""
        outputs = classify(model, features * superior), Output(self.inferior(features * inferior))
        better, worse = (torch.stack([loss(output, y) for loss in self.losses]).sum(0) for output in outputs)
        return better, worse


def factorisation(one: Tensor, other: Tensor, off_diagonal: float) -> Tensor:
    """Return mean_i (C_ii - 1)² + `off_diagonal` · mean_{i≠j} C_ij² for the correlations C of two sets of features.

    Features (N, F) are standardised first (unbiased deviation + 1e-6), so that C = oneᵀ other / N.
    """
    one, other = ((f - f.mean(0)) / (f.std(0) + 1e-6) for f in (one, other))
    correlation = one.T @ other / len(one)
    diagonal = correlation.diagonal()
    pairs = max(1, correlation.numel() - len(diagonal))
    rest = (correlation.square().sum() - diagonal.square().sum()) / pairs
    return (diagonal - 1).square().mean() + off_diagonal * rest


def ramped(epoch: Tensor, ramp: float) -> Tensor:
    """Return exp(-5 (1 - e/ramp)²) at epoch e, and 1 from `ramp` on."""
    share = (epoch / ramp).clamp(max=1) if ramp else torch.ones_like(epoch)
    return (-5 * (1 - share).square()).exp()


def largest_draw(logits: Tensor, noise: Tensor) -> Tensor:
    """Return the largest (N, F) of K relaxed draws, each fed with the previous one, the first with logits (N, F).

    `noise` (K, N, F) is Gumbel noise divided by the temperature.
    """
    draws = []
    for drawn in noise:
        logits = torch.add(drawn, logits, alpha=1 / TEMPERATURE).softmax(1)
        draws.append(logits)
    return torch.stack(draws).amax(0)


def _check_count(images: int) -> None:
    """Refuse steps of one image, which has no correlations."""
    if images < 2:
        raise MedicError(f"objective 'cirl' pairs the images of a step, not {images}: raise --batch-size")


def mix_amplitudes(images: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """Give images (N, C, H, W) the amplitudes (1 - λ) A + λ A' in every channel, keeping their phases.

    A' are the amplitudes of their partners (N, C, H, W), and λ is `share` (N,). Values may leave the images' range.
    """
    # Half of the spectrum suffices, because images are real.
    spectrum, other = torch.fft.rfft2(images), torch.fft.rfft2(partners)
    amplitude = torch.lerp(spectrum.abs(), other.abs(), share[:, None, None, None])
    mixed: Tensor = torch.fft.irfft2(torch.polar(amplitude, spectrum.angle()), s=images.shape[-2:])
    return mixed


def quantised(pixels: Tensor) -> Tensor:
    """Clamp pixels to [0, 1] and round them down to multiples of 1/255."""
    return (255 * pixels.clamp(0, 1)).floor() / 255


def random_pairs(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a partner for each of `count` images, indices (N,), and a share λ ~ U(0, 1) (N,) per pair.

    With an odd count one image is its own partner. Both are drawn on the device of `like`.
    """
    order = torch.rand(count, device=like.device).argsort()
    place = order.argsort()
    half = max(1, count // 2)
    share = torch.rand(half, device=like.device, dtype=like.dtype)
    paired = torch.where(place < count // 2 * 2, (place + half) % (2 * half), place)
    return order[paired], share[place % half]


OBJECTIVES["cirl"] = ObjectiveKind((CE,), ("close",), "cls", Cirl)

METHODS = (
    Method(
        "cirl",
        "features that stay when amplitudes change, each useful by itself",
        "objective: images with mixed amplitudes, decorrelated features, and an adversary that masks them",
        "Lv et al. 2022",
        preset={
            "objective": "cirl",
            "lr": Rate(small=1e-2, large=1e-3),
            "weight_decay": 5e-4,
            "head_lr_scale": 10.0,
            "images": 72,
        },
        paper="CIRL",
    ),
)
