"""ARPL with confusing samples (Chen et al. 2021): generated images that must be no known class."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from medic.errors import MedicError, check_range
from medic.objectives.gan import LATENT, WIDTHS, Discriminator, Generator
from medic.objectives.objective import Loss, Objective, Parts, Risk, Setup
from medic.objectives.player import Player, adam, descend
from medic.outputs import Output
from medic.tasks import Step

Confidence = Callable[[nn.Module, Tensor], Tensor]
"""Maps a model and pixels in [0, 1] (N, C, H, W) to how sure the model is of their classes, a scalar."""


class ConfusingSamples(Objective):
    """The losses, and `beta` · E of images from a generator, which are to be as far from every reciprocal point.

    E = exp(mean_n Σ_k s_nk log s_nk), s_n the softmax of ‖f_n - P_k‖² / F over the classes k: from 1/C, where all
    distances are equal, to 1. Generated images pass through copies of the model's batch norm, so that its statistics
    are those of real images; the copies' scales and shifts are trained with the model, and testing does not use them.
    """

    inside = True

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        beta: float = 0.1,
        gan_lr: float = 2e-4,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        check_range("ARPL-CS", beta=beta)
        check_range("ARPL-CS", above=True, gan_lr=gan_lr)
        self.beta, self.gan_lr = beta, gan_lr
        self.setup = Setup()
        self.norms = nn.ModuleList()
        self.adversaries: Adversaries | None = None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Copy the model's batch norm as it is now, and make the networks for images of this shape."""
        super().prepare(model, setup)
        size = setup.shape[-1]
        if size not in WIDTHS:
            nearest = min(WIDTHS, key=lambda known: abs(known - size))
            raise MedicError(
                f"arpl-cs has a generator for images of {' or '.join(map(str, WIDTHS))} pixels, not {size}: "
                f"use --image-size {nearest}, or --method arpl"
            )
        self.setup = setup
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _, norm in batch_norms(model))
        self.adversaries = Adversaries(setup, self.gan_lr, self.beta, self.confidence)

    def forward(self, model: nn.Module, step: Step) -> Risk:
        """Measure the step, and as many fresh generated images beside it."""
        if self.adversaries is None:
            raise MedicError("arpl-cs was not prepared: objective.prepare(model, setup) before training")
        risk = super().forward(model, step)
        with torch.no_grad():  # the generator does not learn from this
            pixels = self.adversaries.generate(step.x)
        return risk.plus(self.beta * self.confidence(model, pixels))

    def confidence(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """E of generated pixels (N, C, H, W)."""
        return peakedness(with_norms(model, self.norms, self.setup.to_inputs(pixels)))


class Adversaries(Player):
    """A generator G and a discriminator D; both see pixels in [0, 1], and the model sees those of G as inputs.

    A turn makes a batch of fakes for every step, as many as it has images x. D descends -log D(x) - log(1 - D(fake)),
    then G descends -log D(fake) + `beta` · E(fake), the means over the batch, each one step of its own Adam.
    """

    first = True

    def __init__(self, setup: Setup, lr: float, beta: float, confidence: Confidence) -> None:
        super().__init__()
        self.setup, self.lr, self.beta, self.confidence = setup, lr, beta, confidence
        self.generator = Generator(setup.shape[0], setup.shape[-1])
        self.discriminator = Discriminator(setup.shape[0])

    def start(self) -> None:
        """An Adam each, with the moments of the publication."""
        networks = (self.generator, self.discriminator)
        self.optimizers = [adam(network.parameters(), self.lr, betas=(0.5, 0.999)) for network in networks]

    def play(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Tell real from fake, then make better fakes, once for every step."""
        of_generator, of_discriminator = self.optimizers
        for step in steps:
            fake = self.generate(step.x)
            doubt = functional.softplus(-self.discriminator(self.setup.to_pixels(step.x)))
            belief = functional.softplus(self.discriminator(fake.detach()))
            descend(doubt.mean() + belief.mean(), of_discriminator)
            caught = functional.softplus(-self.discriminator(fake))
            descend(caught.mean() + self.beta * self.confidence(model, fake), of_generator)

    def generate(self, like: Tensor) -> Tensor:
        """Pixels of as many fresh images as these inputs have."""
        noise = torch.randn(len(like), LATENT, dtype=like.dtype, device=like.device)
        pixels: Tensor = self.generator(noise)
        return pixels


def peakedness(output: Output) -> Tensor:
    """exp of the mean negative entropy of softmax(distances), a scalar; the radius, in all of them, does not matter."""
    if output.distance is None:
        raise MedicError("arpl-cs needs a head of reciprocal points: --head reciprocal")
    log = output.distance.log_softmax(1)
    return (log.exp() * log).sum(1).mean().exp()


def batch_norms(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The batch-norm layers of a model with their names, always in the same order, however the model is wrapped."""
    return (
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    )


def with_norms(model: nn.Module, norms: nn.ModuleList, x: Tensor) -> Output:
    """What a model says of inputs, through other batch-norm layers, whose statistics move in place of its own."""
    tensors = {
        f"{name}.{key}": tensor
        for (name, _), norm in zip(batch_norms(model), norms, strict=True)
        for key, tensor in (*norm.named_parameters(), *norm.named_buffers())
    }
    return Output.of(functional_call(model, tensors, (x,)))
