"""ALOFT: noise on low-frequency amplitudes inside a GFNet (Guo et al. 2023)."""

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
    """A layer that adds noise to low-frequency amplitudes, scaled by their standard deviation over the batch.

    Variant `e` draws noise for every element. Variant `s` draws noise for the mean and the deviation of each sample and
    channel. `factor` scales the noise. `p` is the probability that a call adds noise. `share` is the fraction of the
    spectrum that is treated as low-frequency. Phases do not change, except that a negative amplitude inverts its phase.
    """

    variant: Variant
    factor: float = hyperparameter(1.0)
    p: float = hyperparameter(0.5, most=1)
    share: float = hyperparameter(0.5, most=1, above=True)
    needs = ("backbone", "setup")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("ALOFT variant", self.variant, get_args(Variant))

    def forward(self, spectrum: Tensor) -> Tensor:
        """Perturb a complex half spectrum of shape (B, h, w, C) from `rfft2`. A batch of one is returned unchanged."""
        batch, height, width, _ = spectrum.shape
        rows, columns = low_frequencies(height, width, self.share)
        # Variant `s` needs at least two low frequencies for a deviation. A 2x2 grid has fewer.
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
        """Insert the layer into every global filter of a backbone. `inputs` is not used."""
        filters = [part for part in backbone.modules() if isinstance(part, GlobalFilter)]
        if not filters:
            name = type(backbone).__name__
            raise MedicError(f"ALOFT requires a backbone with global filters, got {name}: use --backbone gfnet_h_ti")
        for part in filters:
            part.perturb = self

    def _noise(self, amplitude: Tensor) -> Tensor:
        """Draw noise for amplitudes of shape (B, rows, columns, C)."""
        if self.variant == "e":
            return torch.randn_like(amplitude) * _deviation(amplitude, 0)
        mean, deviation = amplitude.mean((1, 2), keepdim=True), _deviation(amplitude, (1, 2))
        to_mean = torch.randn_like(mean) * _deviation(mean, 0)
        to_deviation = torch.randn_like(deviation) * _deviation(deviation, 0)
        return to_mean + to_deviation * (amplitude - mean) / deviation


def low_frequencies(height: int, width: int, share: float) -> tuple[range, range]:
    """Return the rows (in `fftshift` order) and the columns of a half spectrum that hold low frequencies."""
    rows, columns = int(height * sqrt(share)), int(width * sqrt(share))
    start = height // 2 - rows // 2
    return range(start, start + rows), range(columns)


def _deviation(values: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Return the standard deviation over `dims`, which are kept. The result is never 0."""
    return (values.var(dims, correction=1, keepdim=True) + 1e-6).sqrt()


def _polar(z: Tensor) -> tuple[Tensor, Tensor]:
    """Split complex numbers into amplitudes and phases. A phase is a complex number with amplitude 1.

    If the amplitude is below rounding error, the phase is noise with an unbounded gradient. Such numbers get amplitude
    0 and phase 1, both without a gradient.
    """
    known = z.detach().abs() > torch.finfo(z.dtype).eps
    z = torch.where(known, z, 1)
    amplitude = z.abs()
    return torch.where(known, amplitude, 0), z / amplitude
