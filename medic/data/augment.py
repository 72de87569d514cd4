"""Augmentation of a whole batch at once, with a draw per image."""

from dataclasses import dataclass

import torch
from torch import Tensor

_GREY = torch.tensor([0.299, 0.587, 0.114])  # the weights of luma that image libraries use


@dataclass(frozen=True)
class Recipe:
    """How training images are varied.

    `jitter` j draws factors of brightness, contrast and saturation from [1 - j, 1 + j] and a turn of hue from
    [-j, j], and applies them in this order; `grey` is the probability of losing all colour.
    """

    jitter: float = 0.0
    grey: float = 0.0

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Vary float pixels in [0, 1] of shape (N, 3, H, W)."""
        if self.jitter:
            draws = torch.rand(4, len(pixels), generator=generator).to(pixels.device) * 2 - 1
            draws = (draws * self.jitter)[:, :, None, None, None]
            pixels = (pixels * (1 + draws[0])).clamp(0, 1)
            pixels = _blend(pixels, _luma(pixels).mean((2, 3), keepdim=True), 1 + draws[1])
            pixels = _blend(pixels, _luma(pixels), 1 + draws[2])
            pixels = turn_hue(pixels, draws[3, :, 0])
        if self.grey:
            lost = (torch.rand(len(pixels), generator=generator) < self.grey).to(pixels.device)
            pixels = torch.where(lost[:, None, None, None], _luma(pixels), pixels)
        return pixels


RECIPES: dict[str, Recipe] = {"digits": Recipe(jitter=0.4, grey=0.1), "none": Recipe()}


def turn_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of HSV by `turn` (N, 1, 1), where 1 is a full turn, keeping saturation and value."""
    value, _ = pixels.max(1)
    chroma = value - pixels.amin(1)
    red, green, blue = pixels.unbind(1)
    sixth = torch.where(
        value == red,
        (green - blue),
        torch.where(value == green, 2 * chroma + blue - red, 4 * chroma + red - green),
    ) / chroma.clamp(min=1e-12)
    hue = (sixth / 6 + turn) % 1
    # Channel n of HSV → RGB is value - chroma · clamp(min(k, 4 - k), 0, 1) with k = (n + 6 hue) mod 6.
    offsets = torch.tensor([5.0, 3.0, 1.0], device=pixels.device)[:, None, None]
    k = (offsets + 6 * hue[:, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def _luma(pixels: Tensor) -> Tensor:
    return (pixels * _GREY.to(pixels)[:, None, None]).sum(1, keepdim=True)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Go from `other` through `pixels` by `factor`."""
    return (factor * pixels + (1 - factor) * other).clamp(0, 1)
