"""Augmentation of a whole batch at once, with a draw per image.

`Augmentation.draw` draws random numbers on the host. `Augmentation.apply` turns them into tensor arithmetic that
neither synchronises with the device nor allocates elsewhere, so that a CUDA graph can hold it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice

_ATTEMPTS = 10  # at a crop that fits into the image, as torchvision makes them
_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114  # the weights of luma that image libraries use


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied, in this order.

    A crop takes a share of the area from the range `scale` in a shape (width / height) from the range `ratio`, and is
    resized to the whole; `flip` is the probability of being mirrored. `jitter` j draws factors of brightness, contrast
    and saturation from [1 - j, 1 + j] and a turn of hue from [-j, j]; `grey` is the probability of losing all colour.
    """

    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: float = 0.0
    grey: float = 0.0

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise MedicError(
                f"scale is {self.scale}, which is no range of shares of an image's area: give scale=0.8:1, say"
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise MedicError(f"ratio is {self.ratio}, which is no range of width / height")
        if not 0 <= self.jitter <= 0.5:
            raise MedicError(f"jitter is {self.jitter}, but must be from 0 to 0.5, half a turn of hue")
        for name, probability in (("flip", self.flip), ("grey", self.grey)):
            if not 0 <= probability <= 1:
                raise MedicError(f"{name} is {probability}, but is a probability")

    def __call__(
        self, pixels: Tensor, generator: torch.Generator, size: int | None = None, frames: Tensor | None = None
    ) -> Tensor:
        """Vary float pixels in [0, 1] of shape (N, 3, H, W), and make them `size` x `size` if that is given."""
        count, _, height, width = pixels.shape
        return self.apply(pixels, self.draw(count, height, width, generator, frames).to(pixels.device), size)

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator, frames: Tensor | None = None
    ) -> Tensor:
        """The random part: a row for each of `count` images of height x width, on the host, shape (count, 10).

        Top, left, height and width of the crop in whole pixels; 1 to mirror; the factors of brightness, contrast and
        saturation, the turn of hue; 1 to lose the colours. Where images were squashed, `frames` (count, 2) are the
        heights and widths that they had: the crops have the shapes that crops of those would have.
        """
        uniform = torch.rand(count, 2 * _ATTEMPTS + 8, dtype=torch.float64, generator=generator)
        crop, flip, factors, grey = uniform.split((2 * _ATTEMPTS + 2, 1, 4, 1), dim=1)
        factors = self.jitter * (2 * factors - 1) + torch.tensor([1, 1, 1, 0])
        shape = torch.tensor([height, width]).expand(count, 2)
        boxes = self._boxes(crop, shape) if frames is None else _squashed(self._boxes(crop, frames), frames, shape)
        return torch.cat((boxes, flip < self.flip, factors, grey < self.grey), 1).float()

    def apply(self, pixels: Tensor, draws: Tensor, size: int | None = None) -> Tensor:
        """Vary pixels (N, 3, H, W) as `draws` (N, 10), on the same device, says. The pixels given stay as they are."""
        box = draws[:, :4]
        flip, factors, grey = draws[:, 4:].to(pixels.dtype).split((1, 4, 1), dim=1)
        shape = (pixels.shape[2], pixels.shape[3]) if size is None else (size, size)
        if self.scale is not None or shape != pixels.shape[2:]:
            pixels = resample(pixels, box, flip, shape)
        elif self.flip:
            pixels = torch.lerp(pixels, pixels.flip(3), _per_image(flip))
        if self.jitter:
            pixels = jitter(pixels, factors)
        if self.grey:
            pixels = torch.lerp(pixels, _luma(pixels), _per_image(grey))
        return pixels

    def _boxes(self, uniform: Tensor, frames: Tensor) -> Tensor:
        """Crops (N, 4) of images of the heights and widths `frames` (N, 2), by the rules of torchvision.

        `uniform` (N, 2 * attempts + 2) are random numbers. The first attempt that fits is taken and goes anywhere; if
        none does, the largest crop of an allowed shape is taken from the middle.
        """
        if self.scale is None:
            return torch.cat((torch.zeros_like(frames), frames), dim=1)
        share, shape, place = uniform.split((_ATTEMPTS, _ATTEMPTS, 2), dim=1)
        area = frames.prod(1, keepdim=True) * _between(self.scale[0], self.scale[1], share)
        ratio = _between(math.log(self.ratio[0]), math.log(self.ratio[1]), shape).exp()
        tried = torch.stack((area / ratio, area * ratio), dim=2).sqrt().round()  # (N, attempts, 2)
        longest = torch.stack((frames[:, 1] / self.ratio[0], frames[:, 0] * self.ratio[1]), dim=1).round()
        tried = torch.cat((tried, longest.minimum(frames)[:, None]), dim=1)
        first = ((tried > 0) & (tried <= frames[:, None])).all(2).byte().argmax(1)  # the last one always fits
        sides = tried[torch.arange(len(tried)), first]
        anywhere = (place * (frames - sides + 1)).floor()
        corner = torch.where((first < _ATTEMPTS)[:, None], anywhere, ((frames - sides) / 2).floor())
        return torch.cat((corner, sides), dim=1)


RECIPES: dict[str, Augmentation] = {
    "medic": Augmentation(scale=(0.8, 1.0), flip=0.5, jitter=0.4, grey=0.1),
    "domainbed": Augmentation(scale=(0.7, 1.0), flip=0.5, jitter=0.3, grey=0.1),
    "digits": Augmentation(jitter=0.4, grey=0.1),
    "none": Augmentation(),
}


def make_augmentation(value: str | Mapping[str, Any]) -> Augmentation:
    """A recipe by name, by numbers, `scale=0.8:1,flip=0.5,jitter=0.4,grey=0.1`, or both, `medic,jitter=0.2`."""
    numbers: dict[str, Any] = {}
    recipe = Augmentation()
    if isinstance(value, Mapping):
        numbers = dict(value)
    else:
        for position, part in enumerate(value.split(",")):
            name, equals, number = part.partition("=")
            if equals:
                numbers[name] = number
            elif position == 0:
                recipe = RECIPES[check_choice("augmentation", name, RECIPES)]
            else:
                raise MedicError(f"augmentation {value!r}: {part!r} is not a number by name, as in jitter=0.4")
    for name in numbers:
        check_choice("number", name, [field.name for field in fields(Augmentation)], "of an augmentation")
    parsed: dict[str, Any] = {name: _number(name, given) for name, given in numbers.items()}
    return replace(recipe, **parsed)


def _number(name: str, given: Any) -> float | tuple[float, ...]:
    """A number, or for a range its two ends: `0.8:1`, or a list."""
    ends = given.split(":") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    try:
        values = tuple(float(end) for end in ends)
    except (TypeError, ValueError):
        values = ()
    wanted = 2 if name in ("scale", "ratio") else 1
    if len(values) != wanted:
        example = "a range, as in 0.8:1" if wanted == 2 else "a number, as in 0.4"
        raise MedicError(f"augmentation {name}={given}: give {example}")
    return values if wanted == 2 else values[0]


def describe_augmentation(recipe: Augmentation) -> str:
    """The name of a recipe, or its numbers, so that `make_augmentation` gives it back."""
    for name, known in RECIPES.items():
        if recipe == known:
            return name
    values = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    changed = {name: value for name, value in values.items() if value != getattr(Augmentation(), name)}
    return ",".join(
        f"{name}={':'.join(map(repr, value)) if isinstance(value, tuple) else repr(value)}"
        for name, value in changed.items()
    )


def resample(pixels: Tensor, box: Tensor, flip: Tensor, shape: tuple[int, int]) -> Tensor:
    """Crop pixels (N, C, H, W) to `box` (N, 4), resize them to `shape`, mirror them where `flip` (N, 1) is 1.

    The axes are filtered one after the other, by gathering: on a CPU this takes a fraction of the time of `grid_sample`
    or of products with matrices of weights, and nowhere does it depend on the precision set for matrix products.
    """
    top, left, height, width = box.split(1, dim=1)
    pixels = _mix_rows(pixels, *_taps(top, height, pixels.shape[2], shape[0]))
    return _mix_columns(pixels, *_taps(left, width, pixels.shape[3], shape[1], flip))


def jitter(pixels: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of pixels (N, 3, H, W), in this order, by `factors` (N, 4)."""
    brightness, contrast, saturation, turn = (_per_image(column) for column in factors.split(1, dim=1))
    # clamp(bx, 0, 1) is b · min(x, 1/b), and this b waits for the contrast's own factor.
    pixels = torch.minimum(pixels, 1 / brightness)
    mean = brightness * _luma(pixels.mean((2, 3), keepdim=True))
    pixels.mul_(brightness * contrast).add_((1 - contrast) * mean).clamp_(0, 1)
    torch.lerp(_luma(pixels), pixels, saturation, out=pixels).clamp_(0, 1)
    return turn_hue(pixels, turn[:, 0])


def turn_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of HSV of pixels (N, 3, H, W) by `turn` (N, 1, 1), at most half a turn; the rest of HSV stays.

    With the chroma, which is largest - least, as the unit, the hue in sixths of a turn is the angle from red,
    1 + green + blue - red - least, on the side of green or, with a minus, of blue. From a hue p back to a channel:
    least + chroma · (2 - 6 clamp(|p - c|, 1/6, 1/3)) with c = 1/3 for green and 2/3 for blue. For red, whose c = 0 is
    where hues wrap around, it is least + chroma · (6 clamp(|p - 1/2|, 1/6, 1/3) - 1).
    """
    red, green, blue = pixels.unbind(1)
    least = torch.minimum(red, green)
    torch.minimum(least, blue, out=least)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma).sub_(least)
    below, above = least - chroma, least.add_(chroma, alpha=2)
    angle = torch.add(green, blue).sub_(red).sub_(below).copysign_(green - blue)
    chroma.clamp_(min=1e-12)  # grey has no hue, but no division by zero either
    hue = torch.addcdiv(turn + 1, angle, chroma, value=1 / 6).frac_()
    from_cyan, from_green, from_blue = ((hue - centre).abs_().clamp_(1 / 6, 1 / 3) for centre in (1 / 2, 1 / 3, 2 / 3))
    green = torch.addcmul(above, from_green, chroma, value=-6)
    blue = above.addcmul_(from_blue, chroma, value=-6)
    red = below.addcmul_(from_cyan, chroma, value=6)
    return torch.stack((red, green, blue), dim=1)


def _taps(start: Tensor, length: Tensor, whole: int, size: int, flip: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which of the `whole` pixels along an axis make each of `size` new ones: indices and weights (N, size, taps).

    Only those from `start` (N, 1) on, `length` (N, 1) many, are seen. The filter is torch's antialiased bilinear one:
    a triangle that reaches one pixel of the old ones or of the new ones, whichever is larger.
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
    """Make each row of (N, C, size, W) from rows of pixels (N, C, H, W): a bag of embeddings, as these are called."""
    count, channels, height, width = pixels.shape
    plane = torch.arange(count * channels, device=pixels.device).view(count, channels, 1, 1) * height
    bags = (plane + indices[:, None]).flatten(0, 2)
    weights = weights[:, None].expand(-1, channels, -1, -1).flatten(0, 2).to(pixels.dtype)
    rows = functional.embedding_bag(bags, pixels.reshape(-1, width), mode="sum", per_sample_weights=weights)
    return rows.view(count, channels, -1, width)


def _mix_columns(pixels: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Make each column of (N, C, H, size) from columns of pixels (N, C, H, W)."""
    taps = indices.movedim(2, 0).contiguous()[:, :, None, None].expand(-1, -1, *pixels.shape[1:3], -1)
    shares = weights.movedim(2, 0).contiguous()[:, :, None, None].to(pixels.dtype)
    columns = pixels.gather(3, taps[0]).mul_(shares[0])
    for tap, share in zip(taps[1:], shares[1:], strict=True):
        columns.addcmul_(pixels.gather(3, tap), share)
    return columns


def _luma(pixels: Tensor) -> Tensor:
    """(N, 3, H, W) → (N, 1, H, W)."""
    red, green, blue = pixels.split(1, dim=1)
    return torch.mul(red, _RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE)


def _squashed(boxes: Tensor, frames: Tensor, shape: Tensor) -> Tensor:
    """Crops (N, 4) of images of height and width `frames` (N, 2) as whole pixels of what they were squashed to."""
    scale = shape / frames
    start, end = (boxes[:, :2] * scale).round(), (boxes.unflatten(1, (2, 2)).sum(1) * scale).round()
    start = start.minimum(shape - 1)
    return torch.cat((start, (end - start).clamp(min=1)), dim=1)


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform


def _per_image(column: Tensor) -> Tensor:
    """(N, 1) → (N, 1, 1, 1)."""
    return column[:, :, None, None]
