"""ARPL (Chen et al. 2021): reciprocal points; and ARPL-CS, with generated confusing samples."""

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
"""The length of the noise vector of an image."""

WIDTHS: Mapping[int, tuple[int, ...]] = {32: (512, 256, 128), 64: (512, 256, 128, 64)}
"""The channels of a generator's maps of side 4, 8, …, by image side in pixels."""


class Reciprocal(Head, name="reciprocal"):
    """A reciprocal point P_k stands for everything that is not class k, and one radius R bounds the known space.

    Logits are ‖f - P_k‖² / F - f · P_k: far from the point means the class.
    """

    nonlinear = "ARPL's are not"

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.points = nn.Parameter(0.1 * torch.randn(classes, features))
        self.radius = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Output:
        """Return the logits of features (N, F), and their distances beyond the radius."""
        product = features @ self.points.T
        squares = features.square().sum(1, keepdim=True) + self.points.square().sum(1)
        distance = (squares - 2 * product) / features.shape[1]
        return Output(distance - product, features=features, distance=distance - self.radius)


@dataclass(eq=False)
class Arpl(DeclaredModule):
    """Cross-entropy of the distances to reciprocal points, and a bound on the known space.

    Per sample `CE(l / temperature, y) + weight · max(0, ‖f - P_y‖² / F - R + 1)`, R the radius; the margin of 1 and the
    single radius follow the authors' code.
    """

    weight: float = hyperparameter(0.1)
    temperature: float = hyperparameter(1.0, above=True)
    needs = ("distance",)

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return the loss per sample (N,)."""
        if output.distance is None:
            raise MedicError("the loss of ARPL needs a head of reciprocal points: use --head reciprocal")
        outside = output.distance.gather(1, y[:, None]).squeeze(1)
        own = functional.cross_entropy(output.logits / self.temperature, y, reduction="none")
        return own + self.weight * (outside + 1).relu()


@dataclass(eq=False)
class ConfusingSamples(Objective):
    """ARPL-CS: the losses plus `beta` · E of generated images, which must be equally far from all reciprocal points.

    E = exp(mean_n Σ_k s_nk log s_nk), s_n the softmax of ‖f_n - P_k‖² / F over the classes k: from 1/C, where all
    distances are equal, to 1. Generated images pass through copies of the model's batch norm, so that its statistics
    stay those of real images; the copies' scales and shifts are trained with the model and not used in testing.
    """

    beta: float = hyperparameter(0.1)
    gan_lr: float = hyperparameter(2e-4, above=True)
    inspects_backbone = True
    needs = ("setup",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adversaries: Adversaries | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Copy the model's batch norm and make the networks for images of this shape."""
        super().prepare(model, setup)
        size = setup.shape[-1]
        if size not in WIDTHS:
            nearest = min(WIDTHS, key=lambda known: abs(known - size))
            raise MedicError(
                f"arpl-cs generates images of {' or '.join(map(str, WIDTHS))} pixels, not {size}: "
                f"use --image-size {nearest}, or --method arpl"
            )
        self.setup = setup
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _, norm in batch_norms(model))
        self.adversaries = Adversaries(setup, self.gan_lr, self.confusion)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Measure the step and as many freshly generated images."""
        if self.adversaries is None:
            raise MedicError("arpl-cs is not prepared: call objective.prepare(model, setup) before training")
        risk = super().forward(model, step)
        with torch.no_grad():  # the generator is not trained here
            pixels = self.adversaries.generate(step.x)
        return risk.plus(self.confusion(model, pixels))

    def confusion(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Return `beta` · E of generated pixels (N, C, H, W)."""
        return self.beta * peakedness(with_norms(model, self.norms, self.setup.to_inputs(pixels)))


class Adversaries(AuxiliaryNetwork):
    """A generator G and a discriminator D; both see pixels in [0, 1], and the model sees those of G as inputs.

    An update makes a batch of fakes for every step, as many as the step has images x. D takes an Adam step down
    -log D(x) - log(1 - D(fake)), then G one down -log D(fake), both averaged over the batch, plus `confusion`.
    """

    before_model = True

    def __init__(self, setup: Setup, lr: float, confusion: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.setup, self.lr, self.confusion = setup, lr, confusion
        self.generator = Generator(setup.shape[0], setup.shape[-1])
        self.discriminator = Discriminator(setup.shape[0])

    def make_optimizers(self) -> None:
        """Make an Adam for each network, with the moments of the publication."""
        networks = (self.generator, self.discriminator)
        self.optimizers = [adam(network.parameters(), self.lr, betas=(0.5, 0.999)) for network in networks]

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Update D, then G, once for every step."""
        of_generator, of_discriminator = self.optimizers
        for step in steps:
            fake = self.generate(step.x)
            doubt = functional.softplus(-self.discriminator(self.setup.to_pixels(step.x)))
            belief = functional.softplus(self.discriminator(fake.detach()))
            descend(doubt.mean() + belief.mean(), of_discriminator)
            caught = functional.softplus(-self.discriminator(fake))
            descend(caught.mean() + self.confusion(model, fake), of_generator)

    def generate(self, like: Tensor) -> Tensor:
        """Generate pixels of as many images as there are inputs."""
        pixels: Tensor = self.generator(torch.randn(len(like), LATENT, dtype=like.dtype, device=like.device))
        return pixels


def peakedness(output: Output) -> Tensor:
    """Return exp of the mean negative entropy of softmax(distances), a scalar; the common radius cancels."""
    if output.distance is None:
        raise MedicError("arpl-cs needs a head of reciprocal points: use --head reciprocal")
    log = output.distance.log_softmax(1)
    return (log.exp() * log).sum(1).mean().exp()


def batch_norms(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return the named batch-norm layers of a model, in the same order however the model is wrapped."""
    kind = nn.modules.batchnorm._BatchNorm
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def with_norms(model: nn.Module, norms: nn.ModuleList, x: Tensor) -> Output:
    """Forward inputs through other batch-norm layers, whose statistics move instead of the model's."""
    tensors = {
        f"{name}.{key}": tensor
        for (name, _), norm in zip(batch_norms(model), norms, strict=True)
        for key, tensor in (*norm.named_parameters(), *norm.named_buffers())
    }
    return Output.of(functional_call(model, tensors, (x,)))


class Generator(nn.Module):
    """Maps noise (N, 100) to pixels in [0, 1] (N, C, size, size).

    Transposed 4x4 convolutions without bias, the first to a side of 4, each further one to twice the side; batch norm
    and ReLU between them, a sigmoid behind the last.
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
    """Maps pixels in [0, 1] (N, C, S, S), S ≥ 32, to the log-odds (N,) that they are real.

    4x4 convolutions without bias to 128, 256, 512 channels, each to half the side, and to 1024 channels without
    padding; leaky ReLU between them, batch norm before the second and the third. The sigmoids of the last maps are
    averaged over positions, and a linear layer reads them.
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
        """Return the log-odds of being real; their sigmoid is the network's output in the publication."""
        maps: Tensor = self.layers(pixels)
        with torch.autocast(pixels.device.type, enabled=False):  # cheap, and log-odds need full precision
            return torch.squeeze(self.head(maps.to(pixels.dtype).mean((2, 3))), 1)


class Patches(nn.Conv2d):
    """A convolution computed as one matrix product over patches.

    Where the kernel is nearly as large as the map, a convolution takes up to 30 times as long on a CPU.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W'); without stride and padding."""
        sides = [side - length + 1 for side, length in zip(maps.shape[2:], self.kernel_size, strict=True)]
        columns = functional.unfold(maps, self.weight.shape[2:])  # (N, C · kernel, H' · W')
        return torch.matmul(self.weight.flatten(1), columns).view(len(maps), -1, *sides)


def _initialise(network: nn.Module) -> None:
    """Draw convolutions from N(0, 0.02²) and batch-norm scales from N(1, 0.02²)."""
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
        "every class is what is far from its reciprocal point, within a radius",
        "head and objective: distances to learnt points instead of logits",
        "Chen et al. 2021",
        preset={"objective": "arpl"},
        paper="ARPL",
    ),
    Method(
        "arpl-cs",
        "ARPL, and generated images that look real must be equally far from all reciprocal points",
        "head and objective: ARPL beside a generator and a discriminator",
        "Chen et al. 2021",
        preset={"objective": "arpl-cs", "batch_norm": "local"},  # its second set of statistics has to be trained
    ),
)
