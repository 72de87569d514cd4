"""Convert pixels to normalised inputs and back."""

import torch
from torch import Tensor


def per_channel(values: tuple[float, ...], pixels: Tensor) -> Tensor:
    """Create a tensor of shape (C, 1, 1) on the device of `pixels`, without a copy that CUDA graphs cannot capture."""
    return torch.cat([pixels.new_full((1, 1, 1), value) for value in values])


def normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalise pixels in [0, 1] with the mean and standard deviation of every channel."""
    return (pixels - per_channel(mean, pixels)) / per_channel(std, pixels)


def denormalised(inputs: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Convert normalised inputs back to pixels in [0, 1]."""
    return inputs * per_channel(std, inputs) + per_channel(mean, inputs)
