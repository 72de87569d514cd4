"""CIRL (Lv et al. 2022): amplitude-invariant features, and an adversary that finds the weak features."""

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
    """A network that maps features to masks between 0 and 1. High values mark superior features.

    A perceptron computes a_0, followed by K relaxed draws a_i = softmax((a_{i-1} + g_i) / 0.5) with Gumbel noise g_i.
    The mask is the elementwise maximum of a_1 … a_K. The network minimises `contest(model)`.
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
        """Return masks of shape (N, F) for features of shape (N, F)."""
        logits: Tensor = self.network(features)
        uniform = torch.rand(self.draws, *logits.shape, dtype=logits.dtype, device=logits.device)
        return largest_draw(logits, uniform.log_().neg_().log_().div_(-TEMPERATURE))

    def make_optimizers(self) -> None:
        """Create an SGD optimizer with a constant learning rate."""
        fused = next(self.parameters()).is_cuda or None
        sgd = torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused)
        self.optimizers = [sgd]

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Take one optimizer step to separate superior from inferior features."""
        descend(self._contest(model), *self.optimizers)
        self.turns += 1


@dataclass(eq=False)
class Cirl(Objective):
    """½ CE(c1(F ∘ m)) + ½ CE(c2(F ∘ (1 - m))) + w · factorisation, over images and their mixtures.

    A mixture is an image whose amplitudes are mixed with those of another image in the step. F are the features of
    images and mixtures, c1 is the model's head, and c2 a second head. The masks m come from a `Masker`, which minimises
    ½ CE(c1(F ∘ m)) - ½ CE(c2(F ∘ (1 - m))) after every update of the model.

    All masks are 1 in the first `warmup` epochs. The factor w rises to `weight` within `ramp` epochs. The masker uses
    K = `share` · F draws, where F is the number of features. `off_diagonal` is passed to `factorisation`.
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
            raise MedicError("objective 'cirl' mixes images and masks features itself: use --method cirl")
        self._setup: Setup | None = None
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Create the second head and the masker."""
        super().prepare(model, setup)
        _check_count(setup.images)
        features, classes = int(model.features), int(model.classes)  # type: ignore[arg-type]
        self._setup = setup
        self.inferior = linear_layer(features, classes)
        self.masker = Masker(features, max(1, int(self.share * features)), self._contest)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward a step and its mixtures, and compute the risk of both."""
        if self._setup is None:
            raise MedicError("objective 'cirl' is not prepared: call objective.prepare(model, setup) before training")
        x, y = self._seen[step.index] = self._mixed(step, self._setup), step.y.repeat(2)
        output = Output.of(model(x)).in_full()
        with torch.autocast(y.device.type, enabled=False):
            features = features_of(output)
            warm = self.masker.turns < self.warmup * self._setup.epoch
            with torch.no_grad():
                mask = self.masker(features)
            superior, inferior = (m.masked_fill(warm, 1.0) for m in (mask, 1 - mask))
            better, worse = self._losses(model, features, y, superior, inferior)
            tasks = step.means(((better + worse) / 2).view(2, -1).mean(0))  # the mean of an image and its mixture
            original = output.map(lambda part: part[: len(step.y)])
            weight = self.weight * ramped(self.masker.turns // self._setup.epoch, self.ramp)
            one, other = features.chunk(2)
            return self.penalised(tasks, original, step).plus(weight * factorisation(one, other, self.off_diagonal))

    @torch.no_grad()
    def _mixed(self, step: Step, setup: Setup) -> Tensor:
        """Return the images in a step, followed by their mixtures, of shape (2N, C, H, W)."""
        _check_count(len(step.x))
        pixels = setup.to_pixels(step.x)
        partner, share = random_pairs(len(pixels), pixels)
        mixtures = setup.to_inputs(quantised(mix_amplitudes(pixels, pixels[partner], share)))
        return torch.cat([step.x, mixtures]).contiguous(memory_format=torch.channels_last)

    def _contest(self, model: nn.Module) -> Tensor:
        """Return the masker's loss on the steps of the current iteration."""
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
        """Return losses of shape (N,) for both heads. Features and masks have shape (N, F)."""
        outputs = classify(model, features * superior), Output(self.inferior(features * inferior))
        better, worse = (torch.stack([loss(output, y) for loss in self.losses]).sum(0) for output in outputs)
        return better, worse


def factorisation(one: Tensor, other: Tensor, off_diagonal: float) -> Tensor:
    """Return mean_i (C_ii - 1)² + `off_diagonal` · mean_{i≠j} C_ij², with C the correlations of two feature sets.

    Features of shape (N, F) are first standardised (unbiased standard deviation + 1e-6), so that C = oneᵀ other / N.
    """
    one, other = ((f - f.mean(0)) / (f.std(0) + 1e-6) for f in (one, other))
    correlation = one.T @ other / len(one)
    diagonal = correlation.diagonal()
    pairs = max(1, correlation.numel() - len(diagonal))
    rest = (correlation.square().sum() - diagonal.square().sum()) / pairs
    return (diagonal - 1).square().mean() + off_diagonal * rest


def ramped(epoch: Tensor, ramp: float) -> Tensor:
    """Return exp(-5 (1 - e/ramp)²) at epoch e, and 1 from epoch `ramp` onwards."""
    share = (epoch / ramp).clamp(max=1) if ramp else torch.ones_like(epoch)
    return (-5 * (1 - share).square()).exp()


def largest_draw(logits: Tensor, noise: Tensor) -> Tensor:
    """Return the elementwise maximum of K relaxed draws, of shape (N, F). Each draw takes the previous one as input.

    The first draw takes `logits` of shape (N, F). `noise`, of shape (K, N, F), is Gumbel noise divided by the
    temperature.
    """
    draws = []
    for drawn in noise:
        logits = torch.add(drawn, logits, alpha=1 / TEMPERATURE).softmax(1)
        draws.append(logits)
    return torch.stack(draws).amax(0)


def _check_count(images: int) -> None:
    """Raise an error for fewer than two images, which have no correlations."""
    if images < 2:
        raise MedicError(f"objective 'cirl' requires at least 2 images per step, got {images}: raise --batch-size")


def mix_amplitudes(images: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """Mix the amplitudes of images and partners, both of shape (N, C, H, W), and keep the phases of the images.

    The amplitudes become (1 - λ) A + λ A' in every channel, where A' belongs to the partner and λ is `share`, of shape
    (N,). The results may exceed the pixel range.
    """
    # Images are real, so half of the spectrum suffices.
    spectrum, other = torch.fft.rfft2(images), torch.fft.rfft2(partners)
    amplitude = torch.lerp(spectrum.abs(), other.abs(), share[:, None, None, None])
    mixed: Tensor = torch.fft.irfft2(torch.polar(amplitude, spectrum.angle()), s=images.shape[-2:])
    return mixed


def quantised(pixels: Tensor) -> Tensor:
    """Clamp pixels to [0, 1] and round them down to multiples of 1/255."""
    return (255 * pixels.clamp(0, 1)).floor() / 255


def random_pairs(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Draw partner indices of shape (N,) for `count` images, and shares λ ~ U(0, 1) of shape (N,), one per pair.

    If the count is odd, one image is its own partner. The results are on the same device as `like`.
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
        "learn features that ignore image amplitudes and are each useful on their own",
        "objective: images with mixed amplitudes, decorrelated features, and an adversary that masks features",
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
