"""GFNet: a hierarchical network that mixes positions with learned frequency filters (Rao et al. 2021)."""

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
"""Patch side in pixels in the first stage. Every later stage halves the grid."""


class GFNet(nn.Module):
    """A hierarchical GFNet. The defaults build GFNet-H-Ti, with 14,572,096 parameters.

    Maps images of shape (B, 3, image_size, image_size) to features of shape (B, dims[-1]), averaged over the positions
    of the last grid. The state dict uses the official names, without `head`.
    """

    def __init__(
        self,
        dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (3, 3, 10, 3),
        layer_scale: float = 1e-3,
        drop_path: float = 0.1,
        image_size: int = 224,
    ) -> None:
        """Build the network. `depths` and `dims` are the numbers of blocks and channels per stage.

        `layer_scale` is the initial scale of the residuals. `drop_path` is the probability that training skips the last
        block. This probability grows linearly from 0 at the first block.
        """
        super().__init__()
        step = PATCH * 2 ** (len(dims) - 1)
        if image_size < step or image_size % step:
            nearest = step * max(1, round(image_size / step))
            wrong = f"the image size for this GFNet must be a multiple of {step}, got {image_size}"
            raise MedicError(f"{wrong}: use --image-size {nearest}")
        self.image_size, self.num_features = image_size, dims[-1]
        grid = image_size // PATCH
        self.pos_embed = nn.Parameter(torch.empty(1, grid * grid, dims[0]))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        sides = (PATCH, *(2,) * (len(dims) - 1))  # in pixels, then in positions of the previous grid
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
        """Map images of shape (B, 3, image_size, image_size) to features of shape (B, dims[-1])."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            size = self.image_size
            raise ValueError(f"this GFNet requires images of {size}x{size} pixels, got {x.shape[-2]}x{x.shape[-1]}")
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
    """A learned filter in the frequency domain, equivalent to a circular convolution over the whole grid.

    Maps a grid of shape (B, h, h, C) to the same shape. If set, `perturb` changes the complex spectrum of shape
    (B, h, h // 2 + 1, C) before filtering, during training only.
    """

    perturb: Callable[[Tensor], Tensor] | None

    def __init__(self, dim: int, side: int) -> None:
        """Create a filter with `dim` channels for grids of `side` × `side` positions."""
        super().__init__()
        self.complex_weight = nn.Parameter(0.02 * torch.randn(side, side // 2 + 1, dim, 2))  # real, imaginary
        self.perturb = None

    def forward(self, x: Tensor) -> Tensor:
        """Filter a grid of shape (B, h, h, C). Returns float32, even under autocast, or float64 for float64 inputs."""
        with torch.autocast(x.device.type, enabled=False):  # torch.fft lacks bf16; phases require full precision
            x = x if x.dtype == torch.float64 else x.float()
            spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
            if self.perturb is not None and self.training:
                spectrum = self.perturb(spectrum)
            spectrum = spectrum * torch.view_as_complex(self.complex_weight.contiguous())
            filtered: Tensor = torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")
            return filtered


class DropPath(nn.Module):
    """Stochastic depth, which zeroes random samples during training and scales up the others to keep the mean."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise MedicError(f"drop path rate must be at least 0 and below 1, got {rate}")
        self.drop_prob = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero random samples in a batch of shape (B, …)."""
        if not self.training or self.drop_prob == 0:
            return x
        kept = x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)
        return x * (kept / (1 - self.drop_prob))


class _Block(nn.Module):
    """A residual block on grids of shape (B, h, h, C): a filter over positions, then an MLP over channels."""

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
    """Convert an official GFNet checkpoint: drop the head, and resize tensors to `image_size`.

    `state` is a state dict, or a dict that contains one under the key `model`.
    """
    state = state.get("model", state)
    if "pos_embed" not in state:
        raise MedicError("not GFNet weights: 'pos_embed' is missing")
    converted = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}
    converted["pos_embed"] = _resized_positions(state["pos_embed"], image_size // PATCH)
    for key, tensor in converted.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.\d+\.filter\.complex_weight", key):
            converted[key] = _resized_filter(tensor, image_size // PATCH // 2 ** int(match[1]))
    return converted


def _resized_positions(positions: Tensor, side: int) -> Tensor:
    """Resize position embeddings from shape (1, n², C) to (1, side², C)."""
    count = positions.shape[1]
    before = isqrt(count)
    if before * before != count:
        raise MedicError(f"not GFNet weights: expected a square grid of positions, got {count} positions")
    if before == side:
        return positions
    grid = positions.unflatten(1, (before, before)).permute(0, 3, 1, 2)
    return functional.interpolate(grid, (side, side), mode="bicubic").flatten(2).transpose(1, 2)


def _resized_filter(weight: Tensor, side: int) -> Tensor:
    """Resize a filter from shape (h, h // 2 + 1, C, 2) to (side, side // 2 + 1, C, 2)."""
    if weight.shape[0] == side:
        return weight
    maps = weight.flatten(2).permute(2, 0, 1)[None]
    # Aligned corners keep frequency 0 in place.
    maps = functional.interpolate(maps, (side, side // 2 + 1), mode="bicubic", align_corners=True)
    return maps[0].permute(1, 2, 0).reshape(side, side // 2 + 1, *weight.shape[2:]).contiguous()
