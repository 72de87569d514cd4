"""GFNet: a hierarchical network that mixes positions by learned filters in the frequency domain (Rao et al. 2021)."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError

PATCH = 4
"""The side in pixels of one position of the first stage; every later stage halves the grid."""


class GFNet(nn.Module):
    """Stages of blocks over grids of positions; the defaults are GFNet-H-Ti, with 14,572,096 parameters.

    Maps (B, 3, image_size, image_size) to the average over the positions of the last grid, (B, dims[-1]). The state
    dict has the official names, without `head`.
    """

    def __init__(
        self,
        dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (3, 3, 10, 3),
        layer_scale: float = 1e-3,
        drop_path: float = 0.1,
        image_size: int = 224,
    ) -> None:
        """Make a network of `depths` blocks of `dims` channels in its stages.

        `layer_scale` is the initial scale of the residuals, and `drop_path` the rate at which the last block is skipped
        in training; it grows linearly from 0 for the first.
        """
        super().__init__()
        step = PATCH * 2 ** (len(dims) - 1)
        if image_size < step or image_size % step:
            nearest = step * max(1, round(image_size / step))
            wrong = f"this GFNet needs an image size that is a multiple of {step}, not {image_size}"
            raise MedicError(f"{wrong}: use --image-size {nearest}")
        self.image_size, self.num_features = image_size, dims[-1]
        grid = image_size // PATCH
        self.pos_embed = nn.Parameter(torch.empty(1, grid * grid, dims[0]))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        sides = (PATCH, *(2,) * (len(dims) - 1))  # in positions of the grid before, or in pixels
        self.patch_embed = nn.ModuleList(
            nn.Sequential(OrderedDict(proj=nn.Conv2d(before, dim, side, stride=side)))
            for before, dim, side in zip((3, *dims[:-1]), dims, sides, strict=True)
        )
        rates = iter([drop_path * block / max(1, sum(depths) - 1) for block in range(sum(depths))])
        self.blocks = nn.ModuleList(
            nn.ModuleList(_Block(dim, grid // 2**stage, layer_scale, next(rates)) for _ in range(depth))
            for stage, (dim, depth) in enumerate(zip(dims, depths, strict=True))
        )
        self.norm = nn.LayerNorm(dims[-1], eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, image_size, image_size) to features (B, dims[-1])."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            size = self.image_size
            raise ValueError(f"this GFNet takes images of {size}x{size} pixels, not {x.shape[-2]}x{x.shape[-1]}")
        x = x.permute(0, 2, 3, 1)
        for stage, (patches, blocks) in enumerate(zip(self.patch_embed, self.blocks, strict=True)):
            x = patches(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            if stage == 0:
                x = x + self.pos_embed.view(1, *x.shape[1:])
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x)
        normed: Tensor = self.norm(x)
        return normed.mean(dim=(1, 2))


class GlobalFilter(nn.Module):
    """A product with a learned filter in the frequency domain: a circular convolution over the whole grid.

    Maps (B, h, h, C) to the same shape. `perturb`, if set, changes the complex spectrum (B, h, h // 2 + 1, C) before
    the product, in training only.
    """

    perturb: Callable[[Tensor], Tensor] | None

    def __init__(self, dim: int, side: int) -> None:
        """Make a filter of `dim` channels for grids of `side` × `side` positions."""
        super().__init__()
        self.complex_weight = nn.Parameter(0.02 * torch.randn(side, side // 2 + 1, dim, 2))  # real, imaginary
        self.perturb = None

    def forward(self, x: Tensor) -> Tensor:
        """Filter (B, h, h, C); the result is float32, also under autocast, or float64 for float64."""
        with torch.autocast(x.device.type, enabled=False):  # bf16 has no transform, and phases need full precision
            x = x if x.dtype == torch.float64 else x.float()
            spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
            if self.perturb is not None and self.training:
                spectrum = self.perturb(spectrum)
            spectrum = spectrum * torch.view_as_complex(self.complex_weight.contiguous())
            filtered: Tensor = torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")
            return filtered


class DropPath(nn.Module):
    """Sets whole samples of a batch to 0 at some rate in training, and scales up the others to keep the mean."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise MedicError(f"drop path rate {rate}: give a number from 0 to below 1")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop samples of (B, …)."""
        if not self.training or self.rate == 0:
            return x
        kept = x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * (kept / (1 - self.rate))


class _Block(nn.Module):
    """A residual block on (B, h, h, C): a filter over positions, then an MLP over channels."""

    def __init__(self, dim: int, side: int, layer_scale: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.filter = GlobalFilter(dim, side)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=_linear(dim, 4 * dim), activation=nn.GELU(), fc2=_linear(4 * dim, dim))
        )
        self.gamma = nn.Parameter(torch.full((dim,), layer_scale))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        change = self.gamma * self.mlp(self.norm2(self.filter(self.norm1(x))))
        return x + self.drop_path(change)  # type: ignore[no-any-return]


def _linear(before: int, after: int) -> nn.Linear:
    layer = nn.Linear(before, after)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def load_official(state: Mapping[str, Any], image_size: int) -> dict[str, Tensor]:
    """Convert an official state dict, or a dict with it under `model`: without the head, resized to an image size."""
    state = state.get("model", state)
    if "pos_embed" not in state:
        raise MedicError("weights lack 'pos_embed': they are not of a GFNet")
    converted = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}
    converted["pos_embed"] = _resized_positions(state["pos_embed"], image_size // PATCH)
    for key, tensor in converted.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.\d+\.filter\.complex_weight", key):
            converted[key] = _resized_filter(tensor, image_size // PATCH // 2 ** int(match[1]))
    return converted


def _resized_positions(positions: Tensor, side: int) -> Tensor:
    """Resize position embeddings (1, n², C) to another grid, (1, side², C)."""
    count = positions.shape[1]
    before = isqrt(count)
    if before * before != count:
        raise MedicError(f"weights have {count} positions, not a square grid: they are not of a GFNet")
    if before == side:
        return positions
    grid = positions.unflatten(1, (before, before)).permute(0, 3, 1, 2)
    return functional.interpolate(grid, (side, side), mode="bicubic").flatten(2).transpose(1, 2)


def _resized_filter(weight: Tensor, side: int) -> Tensor:
    """Resize a filter (h, h // 2 + 1, C, 2) to another grid, (side, side // 2 + 1, C, 2)."""
    if weight.shape[0] == side:
        return weight
    maps = weight.flatten(2).permute(2, 0, 1)[None]
    # Aligned corners keep frequency 0 in place.
    maps = functional.interpolate(maps, (side, side // 2 + 1), mode="bicubic", align_corners=True)
    return maps[0].permute(1, 2, 0).reshape(side, side // 2 + 1, *weight.shape[2:]).contiguous()
