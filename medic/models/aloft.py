"""ALOFT: noise on the amplitudes of low frequencies inside a GFNet (Guo et al. 2023)."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, check_choice
from medic.models.gfnet import GlobalFilter
from medic.utils.modules import DeclaredModule
from medic.utils.parts import hyperparameter

Variant = Literal["e", "s"]


@dataclass(eq=False)
class Aloft(DeclaredModule):
    """Perturbs the amplitudes of a batch's low frequencies by noise as large as their deviation over the batch.

    Variant `e` draws noise for every element, `s` for the mean and the deviation over the low frequencies of every
    sample and channel. `factor` scales the noise, `p` is the probability that a call perturbs at all, and `share` the
    low part of the spectrum. Phases stay; an amplitude may become negative, which inverts its phase.
    """

    variant: Variant
    factor: float = hyperparameter(1.0)
    p: float = hyperparameter(0.5, most=1)
    share: float = hyperparameter(0.5, most=1, above=True)
    needs = ("backbone", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("variant of ALOFT", self.variant, get_args(Variant))

    def forward(self, spectrum: Tensor) -> Tensor:
        """Perturb a complex half spectrum (B, h, w, C) of `rfft2`; a batch of one has no deviation and stays."""
        batch, height, width, _ = spectrum.shape
        rows, columns = low_frequencies(height, width, self.share)
        # A deviation over the low frequencies needs two of them, more than a grid of 2x2 has.
        if batch < 2 or len(rows) * len(columns) < (1 if self.variant == "e" else 2):
            return spectrum
        shift = height // 2 - rows.start
        low = spectrum[:, :, : len(columns)].roll(shift, dims=1)[:, : len(rows)]
        amplitude, phase = _polar(low)
        drawn = torch.rand((), device=spectrum.device) < self.p
        change = torch.where(drawn, self.factor * self._noise(amplitude) * phase, 0)
        change = functional.pad(change, (0, 0, 0, width - len(columns), 0, height - len(rows)))
        return spectrum + change.roll(-shift, dims=1)

    def insert(self, backbone: nn.Module, inputs: Tensor) -> None:
        """Insert the layer into every global filter of a backbone, for any inputs."""
        filters = [part for part in backbone.modules() if isinstance(part, GlobalFilter)]
        if not filters:
            name = type(backbone).__name__
            raise MedicError(f"ALOFT perturbs global filters, which {name} has not: use --backbone gfnet_h_ti")
        for part in filters:
            part.perturb = self

    def _noise(self, amplitude: Tensor) -> Tensor:
        """Draw noise for amplitudes (B, rows, columns, C), by element or for the mean and deviation of each sample."""
        if self.variant == "e":
            return torch.randn_like(amplitude) * _deviation(amplitude, 0)
        mean, deviation = amplitude.mean((1, 2), keepdim=True), _deviation(amplitude, (1, 2))
        to_mean = torch.randn_like(mean) * _deviation(mean, 0)
        to_deviation = torch.randn_like(deviation) * _deviation(deviation, 0)
        return to_mean + to_deviation * (amplitude - mean) / deviation


def low_frequencies(height: int, width: int, share: float) -> tuple[range, range]:
    """Return the rows, in the order of `fftshift`, and columns of the low frequencies of a half spectrum."""
    rows, columns = int(height * sqrt(share)), int(width * sqrt(share))
    start = height // 2 - rows // 2
    return range(start, start + rows), range(columns)


def _deviation(values: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Return the deviation over some dimensions, which are kept; never 0."""
    return (values.var(dims, correction=1, keepdim=True) + 1e-6).sqrt()


def _polar(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the amplitude of complex numbers, and their phase as complex numbers of amplitude 1.

    The phase of a number below rounding error is noise with an unbounded gradient: there the amplitude is 0, the phase
    1, and neither has a gradient.
    """
    known = z.detach().abs() > torch.finfo(z.dtype).eps
    z = torch.where(known, z, 1)
    amplitude = z.abs()
    return torch.where(known, amplitude, 0), z / amplitude
