"""Batched image augmentation, with separate random numbers for each image.

`Augmentation.draw` draws the random numbers on the host. `Augmentation.apply` uses them in tensor operations that never
synchronise with the device, so that a CUDA graph can capture them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice

_ATTEMPTS = 10  # tries to draw a crop that fits into the image, as in torchvision


@dataclass(frozen=True)
class Augmentation:
    """A recipe of random changes to training images, applied in this order:

    - `scale`: range of the crop's area, as a fraction of the image. The crop is resized to the full image size.
    - `ratio`: range of the crop's aspect ratio (width / height).
    - `flip`: probability of a horizontal flip.
    - `jitter`: strength j of the colour jitter. Brightness, contrast and saturation factors are drawn from
      [1 - j, 1 + j], and a hue rotation from [-j, j].
    - `grey`: probability of conversion to greyscale.
    """

    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: float = 0.0
    grey: float = 0.0

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise MedicError(f"scale must be a range of area fractions, such as scale=0.8:1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise MedicError(f"ratio must be a range of width / height, such as ratio=0.75:1.33, got {self.ratio}")
        if not 0 <= self.jitter <= 0.5:
            raise MedicError(f"jitter must be between 0 and 0.5 (half a turn of the hue circle), got {self.jitter}")
        for name, probability in (("flip", self.flip), ("grey", self.grey)):
            if not 0 <= probability <= 1:
                raise MedicError(f"{name} must be a probability between 0 and 1, got {probability}")

    def __call__(
        self, pixels: Tensor, generator: torch.Generator, size: int | None = None, frames: Tensor | None = None
    ) -> Tensor:
        """Augment float pixels of shape (N, 3, H, W) in [0, 1], and resize them to `size` × `size` if given."""
        count, _, height, width = pixels.shape
        return self.apply(pixels, self.draw(count, height, width, generator, frames).to(pixels.device), size)

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator, frames: Tensor | None = None
    ) -> Tensor:
        """Draw the random numbers for `count` images on the host, as a tensor of shape (count, 10).

        Columns 0 to 3 are the crop's top, left, height and width in whole pixels. Column 4 is 1 to flip. Columns 5 to 8
        are the brightness, contrast and saturation factors and the hue rotation. Column 9 is 1 for greyscale.

        For images that were resized to squares, pass their original heights and widths as `frames` of shape (count, 2).
        The aspect ratios of the crops then refer to the original images.
        """
        uniform = torch.rand(count, 2 * _ATTEMPTS + 8, dtype=torch.float64, generator=generator)
        crop, flip, factors, grey = uniform.split((2 * _ATTEMPTS + 2, 1, 4, 1), dim=1)
        factors = self.jitter * (2 * factors - 1) + torch.tensor([1, 1, 1, 0])
        shape = torch.tensor([height, width]).expand(count, 2)
        boxes = self._boxes(crop, shape) if frames is None else _squashed(self._boxes(crop, frames), frames, shape)
        return torch.cat((boxes, flip < self.flip, factors, grey < self.grey), 1).float()

    def apply(self, pixels: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        """Return augmented pixels of shape (N, 3, H, W), and leave the input unchanged.

        `draws` of shape (N, 10) comes from `draw`, on the same device as the pixels.
        """
        box = draws[:, :4]
        flip, factors, grey = draws[:, 4:, None, None].to(pixels.dtype).split((1, 4, 1), dim=1)
        shape = (pixels.shape[2], pixels.shape[3]) if size is None else (size, size)
        if self.scale is not None or shape != pixels.shape[2:]:
            pixels = resample(pixels, box, flip[..., 0, 0], shape)
        elif self.flip:
            pixels = torch.lerp(pixels, pixels.flip(3), flip)
        if self.jitter:
            pixels = jitter(pixels, factors)
        if self.grey:
            pixels = torch.lerp(pixels, _luma(pixels), grey)
        return pixels

    def _boxes(self, uniform: Tensor, frames: Tensor) -> Tensor:
        """Return crop boxes of shape (N, 4), drawn as in torchvision.

        `frames` of shape (N, 2) holds the image heights and widths, and `uniform` of shape (N, 2 * attempts + 2) the
        random numbers. The first attempt that fits is placed at random. If no attempt fits, the box is the largest
        central crop with an allowed aspect ratio.
        """
        if self.scale is None:
            return torch.cat((torch.zeros_like(frames), frames), dim=1)
        share, shape, place = uniform.split((_ATTEMPTS, _ATTEMPTS, 2), dim=1)
        low, high = self.scale
        area = frames.prod(1, keepdim=True) * (low + (high - low) * share)
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * shape).exp()
        tried = torch.stack((area / ratio, area * ratio), dim=2).sqrt().round()  # (N, attempts, 2)
        longest = torch.stack((frames[:, 1] / self.ratio[0], frames[:, 0] * self.ratio[1]), dim=1).round()
        tried = torch.cat((tried, longest.minimum(frames)[:, None]), dim=1)
        first = ((tried > 0) & (tried <= frames[:, None])).all(2).byte().argmax(1)  # the last candidate always fits
        sides = tried[torch.arange(len(tried)), first]
        anywhere = (place * (frames - sides + 1)).floor()
        corner = torch.where((first < _ATTEMPTS)[:, None], anywhere, ((frames - sides) / 2).floor())
        return torch.cat((corner, sides), dim=1)


RECIPES: dict[str, Augmentation] = {
    "medic": Augmentation(scale=(0.8, 1.0), flip=0.5, jitter=0.4, grey=0.1),
    "strong": Augmentation(scale=(0.4, 1.0), flip=0.5, jitter=0.4, grey=0.5),
    "domainbed": Augmentation(scale=(0.7, 1.0), flip=0.5, jitter=0.3, grey=0.1),
    "digits": Augmentation(jitter=0.4, grey=0.1),
    "none": Augmentation(),
}


def make_augmentation(value: str | Mapping[str, Any]) -> Augmentation:
    """Parse a recipe: a name, values such as `scale=0.8:1,flip=0.5`, or a name with overrides: `medic,jitter=0.2`."""
    recipe = Augmentation()
    if isinstance(value, str):
        parts = value.split(",")
        if "=" not in parts[0]:
            recipe = RECIPES[check_choice("augmentation", parts.pop(0), RECIPES)]
        for part in parts:
            if "=" not in part:
                raise MedicError(f"augmentation {value!r}: expected name=value, such as jitter=0.4, got {part!r}")
        value = dict(part.split("=", 1) for part in parts)
    for name in value:
        check_choice("augmentation parameter", name, [field.name for field in fields(Augmentation)])
    return replace(recipe, **{name: _number(name, entry) for name, entry in value.items()})


def _number(name: str, value: Any) -> Any:
    """Parse a number, or a range written as `0.8:1` or as a list of two numbers."""
    ends = value.split(":") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
    try:
        values = tuple(float(end) for end in ends)
    except (TypeError, ValueError):
        values = ()
    wanted = 2 if name in ("scale", "ratio") else 1
    if len(values) != wanted:
        example = "a range, such as 0.8:1" if wanted == 2 else "a number, such as 0.4"
        raise MedicError(f"augmentation {name}={value}: expected {example}")
    return values if wanted == 2 else values[0]


def describe_augmentation(recipe: Augmentation) -> str:
    """Return a recipe's name or values, in the form that `make_augmentation` accepts."""
    for name, known in RECIPES.items():
        if recipe == known:
            return name
    values = ((field.name, getattr(recipe, field.name), field.default) for field in fields(recipe))
    return ",".join(
        f"{name}={':'.join(map(repr, value)) if isinstance(value, tuple) else repr(value)}"
        for name, value, default in values
        if value != default
    )


def resample(pixels: Tensor, box: Tensor, flip: Tensor, shape: tuple[int, int]) -> Tensor:
    """Crop pixels of shape (N, C, H, W) to `box`, resize them to `shape`, and flip them where `flip` is 1.

    `box` has shape (N, 4), and `flip` has shape (N, 1). Rows and columns are filtered separately, by gathering pixels.
    On a CPU this is several times faster than `grid_sample` or matrix products, and the result does not depend on the
    matrix-product precision.
    """
    top, left, height, width = box.split(1, dim=1)
    pixels = _mix_rows(pixels, *_taps(top, height, pixels.shape[2], shape[0]))
    return _mix_columns(pixels, *_taps(left, width, pixels.shape[3], shape[1], flip))


def jitter(pixels: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, in this order; `factors` has shape (N, 4, 1, 1)."""
    brightness, contrast, saturation, turn = factors.split(1, dim=1)
    # clamp(bx, 0, 1) = b · min(x, 1/b). The factor b is applied together with the contrast factor.
    pixels = torch.minimum(pixels, 1 / brightness)
    mean = brightness * _luma(pixels.mean((2, 3), keepdim=True))
    pixels.mul_(brightness * contrast).add_((1 - contrast) * mean).clamp_(0, 1)
    torch.lerp(_luma(pixels), pixels, saturation, out=pixels).clamp_(0, 1)
    return turn_hue(pixels, turn[:, 0])


def turn_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Rotate the HSV hue of pixels of shape (N, 3, H, W), and keep saturation and value.

    `turn` of shape (N, 1, 1) is the rotation in turns, at most 1/2 in either direction.

    Let chroma = largest - least channel. In units of chroma, the hue in sixths of a turn is the angle from red,
    1 + green + blue - red - least, positive towards green and negative towards blue. From a hue p, each channel is
    least + chroma · (2 - 6 clamp(|p - c|, 1/6, 1/3)), where c = 1/3 for green and 2/3 for blue. Hues wrap around at red
    (c = 0), so red is computed as least + chroma · (6 clamp(|p - 1/2|, 1/6, 1/3) - 1).
    """
    red, green, blue = pixels.unbind(1)
    least = torch.minimum(red, green)
    torch.minimum(least, blue, out=least)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma).sub_(least)
    below, above = least - chroma, least.add_(chroma, alpha=2)
    angle = torch.add(green, blue).sub_(red).sub_(below).copysign_(green - blue)
    chroma.clamp_(min=1e-12)  # avoids a division by zero for grey pixels
    hue = torch.addcdiv(turn + 1, angle, chroma, value=1 / 6).frac_()
    from_cyan, from_green, from_blue = ((hue - centre).abs_().clamp_(1 / 6, 1 / 3) for centre in (1 / 2, 1 / 3, 2 / 3))
    green = torch.addcmul(above, from_green, chroma, value=-6)
    blue = above.addcmul_(from_blue, chroma, value=-6)
    red = below.addcmul_(from_cyan, chroma, value=6)
    return torch.stack((red, green, blue), dim=1)


def _taps(start: Tensor, length: Tensor, whole: int, size: int, flip: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the input indices and filter weights for each output pixel along one axis, of shape (N, size, taps).

    The input is a crop of `length` pixels that begins at `start`, both of shape (N, 1), along an axis of `whole`
    pixels. The filter is torch's antialiased bilinear filter: a triangle whose half-width is one input or output pixel,
    whichever is larger.
    """
    scale = length / size
    reach = scale.clamp(min=1)[..., None]
    place = torch.arange(size, device=start.device) + 0.5
    if flip is not None:
        place = place + flip * (size - 2 * place)
    centre = (scale * place)[..., None]
    taps = torch.arange(math.ceil(2 * max(1, whole / size)), device=start.device)
    position = (centre - reach + 0.5).floor() + taps
    seen = (position >= 0) & (position < length[..., None])
    weights = (1 - (position + 0.5 - centre).abs() / reach).clamp(min=0) * seen
    indices = start[..., None] + position.clamp(min=0).minimum(length[..., None] - 1)
    return indices.long(), weights / weights.sum(2, keepdim=True)


def _mix_rows(pixels: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of pixel rows, of shape (N, C, size, W), computed with `embedding_bag`."""
    count, channels, height, width = pixels.shape
    plane = torch.arange(count * channels, device=pixels.device).view(count, channels, 1, 1) * height
    bags = (plane + indices[:, None]).flatten(0, 2)
    weights = weights[:, None].expand(-1, channels, -1, -1).flatten(0, 2).to(pixels.dtype)
    rows = functional.embedding_bag(bags, pixels.reshape(-1, width), mode="sum", per_sample_weights=weights)
    return rows.view(count, channels, -1, width)


def _mix_columns(pixels: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of pixel columns, of shape (N, C, H, size)."""
    taps = indices.movedim(2, 0).contiguous()[:, :, None, None].expand(-1, -1, *pixels.shape[1:3], -1)
    shares = weights.movedim(2, 0).contiguous()[:, :, None, None].to(pixels.dtype)
    columns = pixels.gather(3, taps[0]).mul_(shares[0])
    for tap, share in zip(taps[1:], shares[1:], strict=True):
        columns.addcmul_(pixels.gather(3, tap), share)
    return columns


def _luma(pixels: Tensor) -> Tensor:
    """Return the ITU-R BT.601 luma of RGB pixels, of shape (N, 1, H, W)."""
    red, green, blue = pixels.split(1, dim=1)
    return torch.mul(red, 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _squashed(boxes: Tensor, frames: Tensor, shape: Tensor) -> Tensor:
    """Map crop boxes from the original images, with heights and widths `frames`, to whole pixels after resizing."""
    scale = shape / frames
    start, end = (boxes[:, :2] * scale).round(), (boxes.unflatten(1, (2, 2)).sum(1) * scale).round()
    start = start.minimum(shape - 1)
    return torch.cat((start, (end - start).clamp(min=1)), dim=1)
