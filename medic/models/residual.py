"""The residual block of a ResNet."""

from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """ReLU(f(x) + x), f two 3x3 convolutions with batch norm, and a ReLU between them, that keep the channels.

    With a stride above 1 the shortcut is a 1x1 convolution of that stride, with batch norm.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = _convolution(channels, 3, 1), nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(_convolution(channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, ⌈H / stride⌉, ⌈W / stride⌉)."""
        residual = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(residual + self.shortcut(x))


def _convolution(channels: int, side: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, channels, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
