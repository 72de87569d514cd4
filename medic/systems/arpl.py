"""ARPL (Chen et al. 2021), which learns reciprocal points, and ARPL-CS, which adds generated confusing samples."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from medic.errors import MedicError
from medic.models.heads import Head
from medic.objectives import OBJECTIVES, AuxiliaryNetwork, Objective, ObjectiveKind, Risk, Setup
from medic.objectives.auxiliary import adam, descend
from medic.systems.base import Method
from medic.tasks import Step
from medic.utils.modules import DeclaredModule
from medic.utils.outputs import Output
from medic.utils.parts import Part, hyperparameter

LATENT = 100
"""Length of the noise vector from which an image is generated."""

WIDTHS: Mapping[int, tuple[int, ...]] = {32: (512, 256, 128), 64: (512, 256, 128, 64)}
"""Channels of the generator's maps with sides 4, 8, …, keyed by image size in pixels."""


class Reciprocal(Head, name="reciprocal"):
    """A head with one reciprocal point P_k per class, which represents everything outside class k, and one radius R.

    The logits are ‖f - P_k‖² / F - f · P_k. Features far from P_k belong to class k. R bounds the known space.
    """

    nonlinear = "the 'reciprocal' head computes distances"

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.points = nn.Parameter(0.1 * torch.randn(classes, features))
        self.radius = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Output:
        """Return logits for features of shape (N, F), and their distances to the points minus the radius."""
        product = features @ self.points.T
        squares = features.square().sum(1, keepdim=True) + self.points.square().sum(1)
        distance = (squares - 2 * product) / features.shape[1]
        return Output(distance - product, features=features, distance=distance - self.radius)


@dataclass(eq=False)
class Arpl(DeclaredModule):
    """The ARPL loss: cross-entropy of distances to reciprocal points, and a bound on the known space.

    The loss per sample is `CE(l / temperature, y) + weight · max(0, ‖f - P_y‖² / F - R + 1)`, with logits l and radius
    R. The margin of 1 and the single radius follow the authors' code.
    """

    weight: float = hyperparameter(0.1)
    temperature: float = hyperparameter(1.0, above=True)
    needs = ("distance",)

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return one loss per sample, of shape (N,)."""
        if output.distance is None:
            raise MedicError("objective 'arpl' requires --head reciprocal")
        outside = output.distance.gather(1, y[:, None]).squeeze(1)
        own = functional.cross_entropy(output.logits / self.temperature, y, reduction="none")
        return own + self.weight * (outside + 1).relu()


@dataclass(eq=False)
class ConfusingSamples(Objective):
    """The ARPL-CS objective: the losses plus `beta` · E, which makes generated images equally far from all points.

    E = exp(mean_n Σ_k s_nk log s_nk), where s_n is the softmax of ‖f_n - P_k‖² / F over the classes k. E ranges from
    1/C, if all distances are equal, to 1. Generated images pass through copies of the model's batch-norm layers, so
    the model's statistics cover real images only. The copies are trained with the model but not used at test time.
    """

    beta: float = hyperparameter(0.1)
    gan_lr: float = hyperparameter(2e-4, above=True)
    inspects_backbone = True
    needs = ("setup",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adversaries: Adversaries | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Copy the model's batch-norm layers and create the generator and the discriminator."""
        super().prepare(model, setup)
        size = setup.shape[-1]
        if size not in WIDTHS:
            nearest = min(WIDTHS, key=lambda known: abs(known - size))
            raise MedicError(
                f"arpl-cs requires an image size of {' or '.join(map(str, WIDTHS))} pixels, got {size}: "
                f"use --image-size {nearest}, or --method arpl"
            )
        self.setup = setup
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _, norm in batch_norms(model))
        self.adversaries = Adversaries(setup, self.gan_lr, self.confusion)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Compute the risk for a step and for the same number of freshly generated images."""
        if self.adversaries is None:
            raise MedicError("arpl-cs is not prepared: call objective.prepare(model, setup) before training")
        risk = super().forward(model, step)
        with torch.no_grad():  # the generator is not trained here
            pixels = self.adversaries.generate(step.x)
        return risk.plus(self.confusion(model, pixels))

    def confusion(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Return `beta` · E for generated pixels of shape (N, C, H, W)."""
        return self.beta * peakedness(with_norms(model, self.norms, self.setup.to_inputs(pixels)))


class Adversaries(AuxiliaryNetwork):
    """A generator G and a discriminator D, which both work on pixels in [0, 1].

    For every step, an update generates as many fake images as the step has real images x. D takes an Adam step on
    -log D(x) - log(1 - D(fake)). Then G takes an Adam step on -log D(fake) plus `confusion`. The losses are averaged
    over the batch.
    """

    before_model = True

    def __init__(self, setup: Setup, lr: float, confusion: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.setup, self.lr, self.confusion = setup, lr, confusion
        self.generator = Generator(setup.shape[0], setup.shape[-1])
        self.discriminator = Discriminator(setup.shape[0])

    def make_optimizers(self) -> None:
        """Create an Adam optimizer for each network, with the published betas."""
        networks = (self.generator, self.discriminator)
        self.optimizers = [adam(network.parameters(), self.lr, betas=(0.5, 0.999)) for network in networks]

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Update D, then G, once per step."""
        of_generator, of_discriminator = self.optimizers
        for step in steps:
            fake = self.generate(step.x)
            doubt = functional.softplus(-self.discriminator(self.setup.to_pixels(step.x)))
            belief = functional.softplus(self.discriminator(fake.detach()))
            descend(doubt.mean() + belief.mean(), of_discriminator)
            caught = functional.softplus(-self.discriminator(fake))
            descend(caught.mean() + self.confusion(model, fake), of_generator)

    def generate(self, like: Tensor) -> Tensor:
        """Generate the pixels of as many images as `like` contains."""
        pixels: Tensor = self.generator(torch.randn(len(like), LATENT, dtype=like.dtype, device=like.device))
        return pixels


def peakedness(output: Output) -> Tensor:
    """Return exp of the mean negative entropy of softmax(distances), a scalar. The shared radius cancels out."""
    if output.distance is None:
        raise MedicError("objective 'arpl-cs' requires --head reciprocal")
    log = output.distance.log_softmax(1)
    return (log.exp() * log).sum(1).mean().exp()


def batch_norms(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return the named batch-norm layers of a model. Wrapping the model does not change their order."""
    kind = nn.modules.batchnorm._BatchNorm
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def with_norms(model: nn.Module, norms: nn.ModuleList, x: Tensor) -> Output:
    """Run the model with `norms` in place of its own batch-norm layers, and update the statistics of `norms`."""
    tensors = {
        f"{name}.{key}": tensor
        for (name, _), norm in zip(batch_norms(model), norms, strict=True)
        for key, tensor in (*norm.named_parameters(), *norm.named_buffers())
    }
    return Output.of(functional_call(model, tensors, (x,)))


class Generator(nn.Module):
    """A network that maps noise of shape (N, 100) to pixels in [0, 1], of shape (N, C, size, size).

    It consists of transposed 4x4 convolutions without bias, with batch norm and ReLU in between and a final sigmoid.
    The first convolution produces maps of side 4, and each subsequent one doubles the side.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((LATENT, *WIDTHS[size], channels)):
            stride, padding = (2, 1) if layers else (1, 0)
            layers.append(nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False))
            layers.extend((nn.BatchNorm2d(after), nn.ReLU()))
        self.layers = nn.Sequential(*layers[:-2])
        _initialise(self)

    def forward(self, noise: Tensor) -> Tensor:
        """Generate pixels from noise."""
        pixels: Tensor = self.layers(noise[:, :, None, None])
        return pixels.to(noise.dtype).sigmoid()


class Discriminator(nn.Module):
    """A network that maps pixels in [0, 1], of shape (N, C, S, S) with S ≥ 32, to log-odds of being real.

    Three 4x4 convolutions without bias produce 128, 256 and 512 channels, and each of them halves the side. A fourth
    produces 1024 channels, without padding. Leaky ReLU follows the first three, with batch norm in the second and
    third. The sigmoids of the last maps are averaged over positions and passed to a linear layer.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        halve = partial(nn.Conv2d, kernel_size=4, stride=2, padding=1, bias=False)
        self.layers = nn.Sequential(
            *(halve(channels, 128), nn.LeakyReLU(0.2)),
            *(halve(128, 256), nn.BatchNorm2d(256), nn.LeakyReLU(0.2)),
            *(halve(256, 512), nn.BatchNorm2d(512), nn.LeakyReLU(0.2)),
            *(Patches(512, 1024, 4, bias=False), nn.Sigmoid()),
        )
        self.head = nn.Linear(1024, 1)
        _initialise(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the log-odds of being real, of shape (N,). The published network returns their sigmoid."""
        maps: Tensor = self.layers(pixels)
        with torch.autocast(pixels.device.type, enabled=False):  # cheap, and log-odds require full precision
            return torch.squeeze(self.head(maps.to(pixels.dtype).mean((2, 3))), 1)


class Patches(nn.Conv2d):
    """A convolution computed as one matrix product over patches.

    On a CPU, this is up to 30 times faster than a convolution whose kernel is nearly as large as the map.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps of shape (N, C, H, W) without stride or padding, giving shape (N, C', H', W')."""
        sides = [side - length + 1 for side, length in zip(maps.shape[2:], self.kernel_size, strict=True)]
        columns = functional.unfold(maps, self.weight.shape[2:])  # (N, C · kernel, H' · W')
        return torch.matmul(self.weight.flatten(1), columns).view(len(maps), -1, *sides)


def _initialise(network: nn.Module) -> None:
    """Initialise convolutions from N(0, 0.02²) and batch-norm scales from N(1, 0.02²)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)


OBJECTIVES["arpl"] = ObjectiveKind((Part("arpl", Arpl),), ("reciprocal",), "max-logit")
OBJECTIVES["arpl-cs"] = replace(OBJECTIVES["arpl"], kind=ConfusingSamples)

METHODS = (
    Method(
        "arpl",
        "learn one reciprocal point per class: images of the class lie far from it, within a radius",
        "head and objective: logits are distances to learned points",
        "Chen et al. 2021",
        preset={"objective": "arpl"},
        paper="ARPL",
    ),
    Method(
        "arpl-cs",
        "ARPL with generated images, which must be equally far from all reciprocal points",
        "head and objective: ARPL with a generator and a discriminator",
        "Chen et al. 2021",
        preset={"objective": "arpl-cs", "batch_norm": "local"},  # the copied statistics must be trained
    ),
)
