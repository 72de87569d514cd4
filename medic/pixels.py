"""From pixels to inputs and back."""

import torch
from torch import Tensor


def per_channel(values: tuple[float, ...], pixels: Tensor) -> Tensor:
    """Constants (C, 1, 1) beside some pixels, filled there: a CUDA graph cannot hold a copy from the host."""
    return torch.cat([pixels.new_full((1, 1, 1), value) for value in values])


def normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Inputs (N, C, H, W) from pixels in [0, 1]: without the mean, divided by the deviation of every channel."""
    return (pixels - per_channel(mean, pixels)) / per_channel(std, pixels)


def denormalised(inputs: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels in [0, 1] from inputs (N, C, H, W)."""
    return inputs * per_channel(std, inputs) + per_channel(mean, inputs)
