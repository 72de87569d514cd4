"""Two small networks for digit benchmarks."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvNet(nn.Module):
    """The Digits-DG network: four blocks of 3x3 convolution with 64 channels, ReLU and 2x2 max-pooling.

    Maps images of shape (N, 3, 32, 32) to features of shape (N, 256). It has 112,576 parameters and no normalisation
    layers.
    """

    num_features = 256
    channels = 64
    """Number of channels in every stage."""

    def __init__(self) -> None:
        super().__init__()
        for block in range(1, 5):
            convolution = nn.Conv2d(3 if block == 1 else 64, 64, kernel_size=3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            self.add_module(f"conv{block}", convolution)
        self.stages = nn.ModuleList(nn.Identity() for _ in range(4))  # attachment points for layers after a block

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (N, 3, 32, 32) to features of shape (N, 256)."""
        if x.shape[-2:] != (32, 32):
            raise ValueError(f"ConvNet requires images of 32x32 pixels, got {x.shape[-2]}x{x.shape[-1]}")
        for block, stage in enumerate(self.stages, 1):
            convolution = self.get_submodule(f"conv{block}")
            # ReLU is monotonic, so it can follow the pooling: same values and gradients, at a quarter of the cost.
            x = stage(functional.relu(functional.max_pool2d(convolution(x), 2)))
        return x.flatten(1)


class MnistCnn(nn.Module):
    """DomainBed's network for coloured MNIST: four convolutions, each followed by ReLU and group norm.

    Maps images of shape (N, 2, 28, 28) to features of shape (N, 128), averaged over positions. It has 371,136
    parameters.
    """

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        channels = 2
        # The names match DomainBed's state dict: conv1 … conv4, bn0 … bn3.
        for index, (width, stride) in enumerate(((64, 1), (128, 2), (128, 1), (128, 1))):
            self.add_module(f"conv{index + 1}", nn.Conv2d(channels, width, 3, stride=stride, padding=1))
            self.add_module(f"bn{index}", nn.GroupNorm(8, width))
            channels = width

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (N, 2, H, W) to features of shape (N, 128)."""
        layers = list(self.children())
        for convolution, norm in zip(layers[::2], layers[1::2], strict=True):
            x = norm(functional.relu(convolution(x)))
        return torch.mean(x, dim=(2, 3))
