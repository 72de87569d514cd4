"""CIRL (Lv et al. 2022): features that stay when amplitudes change, and an adversary that finds the weak ones."""

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_range
from medic.objectives.fourier import mix_amplitudes, quantised, random_pairs
from medic.objectives.objective import Loss, Objective, Parts, Risk, Setup, classify
from medic.objectives.player import Player, descend
from medic.outputs import Output
from medic.tasks import Step

TEMPERATURE = 0.5
WIDTH = 4
"""The hidden features of the masker for each that it masks."""


class Masker(Player):
    """Gives every feature of a sample a share between 0 and 1 by which it is superior.

    The outputs a_0 of a perceptron are followed by K draws, each fed with the one before: with Gumbel noise g_i,
    a_i = softmax((a_{i-1} + g_i) / 0.5), and the mask is the largest of a_1 … a_K, feature by feature. It descends
    what `contest` makes of a model.
    """

    turns: Tensor

    def __init__(self, features: int, draws: int, contest: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        wide = WIDTH * features
        self.draws, self._contest = draws, contest
        self.network = nn.Sequential(
            *(nn.Dropout(0.5), nn.Linear(features, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            *(nn.Linear(wide, features), nn.BatchNorm1d(features, affine=False)),
        )
        self.register_buffer("turns", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """The masks (N, F) of features (N, F)."""
        logits: Tensor = self.network(features)
        uniform = torch.rand(self.draws, *logits.shape, dtype=logits.dtype, device=logits.device)
        return largest_draw(logits, uniform.log_().neg_().log_().div_(-TEMPERATURE))

    def start(self) -> None:
        """SGD at a constant rate."""
        trained = list(self.parameters())
        fused = True if trained[0].is_cuda else None
        sgd = torch.optim.SGD(trained, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused)
        self.optimizers = [sgd]

    def play(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Make the superior features better, and the inferior ones worse."""
        descend(self._contest(model), *self.optimizers)
        self.turns += 1


class Cirl(Objective):
    """½ CE(c1(F ∘ m)) + ½ CE(c2(F ∘ (1 - m))) + w · factorisation, over images and their mixtures.

    Every image has a mixture: itself with the amplitudes of another of the step in part. F are the features of both,
    c1 is the model's head, c2 another like it, and the masks m are of a `Masker`, which descends
    ½ CE(c1(F ∘ m)) - ½ CE(c2(F ∘ (1 - m))) after every update of the model. All masks are 1 for the first `warmup`
    epochs. The factor w climbs to `weight` within `ramp` epochs; `off_diagonal` is for `factorisation`. K is `share`
    times the number of features.
    """

    inside = True
    rate = 10.0

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        weight: float = 5.0,
        off_diagonal: float = 0.005,
        share: float = 0.6,
        warmup: float = 6.0,
        ramp: float = 5.0,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        if self.passes != "step" or self.change is not None:
            raise MedicError("objective 'cirl' mixes the images of a step and masks features itself: use --method cirl")
        check_range("CIRL", most=1, above=True, share=share)
        check_range("CIRL", weight=weight, off_diagonal=off_diagonal, warmup=warmup, ramp=ramp)
        self.weight, self.off_diagonal, self.share = weight, off_diagonal, share
        self.warmup, self.ramp = warmup, ramp
        self._setup: Setup | None = None
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Make the other head and the masker."""
        super().prepare(model, setup)
        _check_count(setup.images)
        features, classes = int(model.features), int(model.classes)  # type: ignore[arg-type]
        self._setup = setup
        self.inferior = nn.Linear(features, classes)
        nn.init.xavier_uniform_(self.inferior.weight, gain=0.1)
        nn.init.zeros_(self.inferior.bias)
        self.masker = Masker(features, max(1, int(self.share * features)), self._contest)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Forward the step with its mixtures, and measure both."""
        if self._setup is None:
            raise MedicError("objective 'cirl' was not prepared: objective.prepare(model, setup) before training")
        x, y = self._seen[step.index] = self._mixed(step, self._setup), step.y.repeat(2)
        output = Output.of(model(x))
        with torch.autocast(y.device.type, enabled=False):  # as for any objective
            features = _features(output)
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
        """The images of a step and behind them their mixtures: (2N, C, H, W)."""
        _check_count(len(step.x))
        pixels = setup.to_pixels(step.x)
        partner, share = random_pairs(len(pixels), pixels)
        mixtures = setup.to_inputs(quantised(mix_amplitudes(pixels, pixels[partner], share)))
        return torch.cat([step.x, mixtures]).contiguous(memory_format=torch.channels_last)

    def _contest(self, model: nn.Module) -> Tensor:
        """What the masker descends, on what the objective has seen last of every step of the iteration."""
        terms = []
        for x, y in self._seen.values():
            with torch.no_grad():
                output = Output.of(model(x))
            with torch.autocast(y.device.type, enabled=False):
                features = _features(output)
                mask = self.masker(features)
                better, worse = self._losses(model, features, y, mask, 1 - mask)
                terms.append((better - worse).mean() / 2)
        self._seen.clear()
        return torch.stack(terms).mean()

    def _losses(
        self, model: nn.Module, features: Tensor, y: Tensor, superior: Tensor, inferior: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The losses (N,) of the model's head and of the other one on features (N, F), each with its masks (N, F)."""
        outputs = classify(model, features * superior), Output(self.inferior(features * inferior))
        better, worse = (torch.stack([loss(output, y) for loss in self.losses]).sum(0) for output in outputs)
        return better, worse


def factorisation(one: Tensor, other: Tensor, off_diagonal: float) -> Tensor:
    """mean_i (C_ii - 1)² + `off_diagonal` · mean_{i≠j} C_ij², C the correlations between two kinds of features (N, F).

    They are brought to mean 0 and deviation 1 (unbiased, + 1e-6) before, so that C = oneᵀ other / N.
    """
    one, other = ((f - f.mean(0)) / (f.std(0) + 1e-6) for f in (one, other))
    correlation = one.T @ other / len(one)
    diagonal = correlation.diagonal()
    pairs = max(1, correlation.numel() - len(diagonal))
    rest = (correlation.square().sum() - diagonal.square().sum()) / pairs
    return (diagonal - 1).square().mean() + off_diagonal * rest


def ramped(epoch: Tensor, ramp: float) -> Tensor:
    """exp(-5 (1 - e/ramp)²) at epoch e, and 1 from `ramp` on."""
    share = (epoch / ramp).clamp(max=1) if ramp else torch.ones_like(epoch)
    return (-5 * (1 - share).square()).exp()


def largest_draw(logits: Tensor, noise: Tensor) -> Tensor:
    """The largest (N, F) of K relaxed draws, each fed with the one before, the first with logits (N, F).

    `noise` (K, N, F) is Gumbel's, divided by the temperature.
    """
    draws = []
    for drawn in noise:
        logits = torch.add(drawn, logits, alpha=1 / TEMPERATURE).softmax(1)
        draws.append(logits)
    return torch.stack(draws).amax(0)


def _features(output: Output) -> Tensor:
    """The features (N, F) of the backbone."""
    if output.features is None:
        raise MedicError("objective 'cirl' needs the backbone's features: return Output(logits, features=features)")
    return output.features


def _check_count(images: int) -> None:
    """Correlations over images need two."""
    if images < 2:
        raise MedicError(f"objective 'cirl' pairs the images of a step, and there is {images}: use a larger batch_size")
