"""From pixels to inputs and back."""

import torch
from torch import Tensor


def per_channel(values: tuple[float, ...], pixels: Tensor) -> Tensor:
    """Return constants (C, 1, 1) on the device of pixels; a CUDA graph cannot hold a copy from the host."""
    return torch.cat([pixels.new_full((1, 1, 1), value) for value in values])


def normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalise pixels in [0, 1] to inputs (N, C, H, W), by the mean and deviation of every channel."""
    return (pixels - per_channel(mean, pixels)) / per_channel(std, pixels)


def denormalised(inputs: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Turn inputs (N, C, H, W) back into pixels in [0, 1]."""
    return inputs * per_channel(std, inputs) + per_channel(mean, inputs)
