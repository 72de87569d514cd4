"""Training in channels-last format, in which convolutions are faster on a CPU and on a GPU."""

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
FEW = 16
"""Number of input channels below which a strided 1 × 1 convolution stays contiguous on a CPU."""


def to_channels_last(model: M, device: torch.device) -> M:
    """Move a model to a device for training, in channels-last format.

    On a CPU, torch 2.13 corrupts memory in the weight gradients of strided 1 × 1 convolutions with few input channels,
    as in the first blocks of RepVGG, MobileOne and FastViT. These layers therefore stay contiguous.
    """
    moved: M = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if device.type == "cpu":
        for layer in moved.modules():
            if isinstance(layer, nn.Conv2d) and _is_affected(layer):
                layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
                layer.register_forward_pre_hook(_make_contiguous)
    return moved


def _is_affected(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < FEW


def _make_contiguous(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)
