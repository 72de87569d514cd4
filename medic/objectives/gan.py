"""The two networks that make ARPL's confusing samples (Chen et al. 2021): a generator and a discriminator."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

LATENT = 100
"""The length of the noise that an image is made of."""

WIDTHS: Mapping[int, tuple[int, ...]] = {32: (512, 256, 128), 64: (512, 256, 128, 64)}
"""The channels of a generator's maps of side 4, 8, …, by the side of its images in pixels."""


class Generator(nn.Module):
    """Makes pixels in [0, 1] (N, C, size, size) of noise (N, 100).

    Transposed 4x4 convolutions without bias, the first to a side of 4, each further one to twice the side; batch norm
    and ReLU between them, a sigmoid behind the last.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        before, layers = LATENT, nn.Sequential()
        for width in WIDTHS[size]:
            layers.extend([_up(before, width, first=before == LATENT), nn.BatchNorm2d(width), nn.ReLU()])
            before = width
        self.layers = layers.append(_up(before, channels))
        _initialise(self)

    def forward(self, noise: Tensor) -> Tensor:
        """The pixels of noise."""
        pixels: Tensor = self.layers(noise[:, :, None, None])
        return pixels.to(noise.dtype).sigmoid()


class Discriminator(nn.Module):
    """Says of pixels in [0, 1] (N, C, S, S), S of 32 or more, whether they are real: log-odds (N,).

    4x4 convolutions without bias to 128, 256, 512 channels, each to half the side, and to 1024 channels without
    padding; leaky ReLU between them, batch norm before the second and the third. The sigmoids of the last maps are
    averaged over positions, and a linear layer reads them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 128, 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(128, 256, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(0.2),
            nn.Conv2d(256, 512, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(512),
            nn.LeakyReLU(0.2),
            Patches(512, 1024, 4, bias=False),
            nn.Sigmoid(),
        )
        self.head = nn.Linear(1024, 1)
        _initialise(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """The log-odds of being real; their sigmoid is the network's output in the publication."""
        maps: Tensor = self.layers(pixels)
        with torch.autocast(pixels.device.type, enabled=False):  # small, and log-odds need all digits
            return torch.squeeze(self.head(maps.to(pixels.dtype).mean((2, 3))), 1)


class Patches(nn.Conv2d):
    """A convolution over every patch of a map, as one product of matrices.

    Where the kernel is nearly as large as the map, libraries of convolutions take up to thirty times as long on a CPU.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W'); without stride and padding."""
        kernel = (self.kernel_size[0], self.kernel_size[1])
        height, width = (side - length + 1 for side, length in zip(maps.shape[2:], kernel, strict=True))
        columns = functional.unfold(maps, kernel)  # (N, C · kernel, H' · W')
        return torch.matmul(self.weight.flatten(1), columns).view(len(maps), -1, height, width)


def _up(before: int, after: int, first: bool = False) -> nn.ConvTranspose2d:
    """A layer that makes 4x4 of a point, or twice the side of a map."""
    stride, padding = (1, 0) if first else (2, 1)
    return nn.ConvTranspose2d(before, after, 4, stride=stride, padding=padding, bias=False)


def _initialise(network: nn.Module) -> None:
    """Convolutions from N(0, 0.02²), scales of batch norm from N(1, 0.02²)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
