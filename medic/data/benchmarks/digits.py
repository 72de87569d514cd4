"""The built-in `digits` benchmark: ten digits in four domains, drawn from files that ship with the dependencies.

- `handwritten`: scikit-learn's scanned digits, in pen on paper
- `printed`: digits in matplotlib's fonts
- `blended`: other handwritten digits, blended into photographs as in MNIST-M
- `street`: house numbers as in SVHN, coloured and blurred, with neighbouring digits

The pixels depend only on this file and those libraries.

Every digit starts as a *stencil*: a tightly cropped greyscale picture of its ink, larger than the final image. The
stencil is placed on the canvas as a *coverage* map of shape (32, 32), from 0 for paper to 1 for ink. The domain then
paints the coverage as an RGB image of shape (32, 32, 3) in [0, 1].
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from medic.data.benchmarks.base import Benchmark
from medic.data.cache import cached
from medic.data.dataset import Generated
from medic.errors import MedicError

DOMAINS = ("handwritten", "printed", "blended", "street")
CLASSES = tuple("0123456789")
SIZE = 32
VERSION = 1  # part of the cache key: increment it when the pixels change

_PER_CELL = 120  # images of one class in one domain
_SEED = 2024
_STENCIL = 72  # height of a stencil in pixels
_FINE = 3  # supersampling factor, for smooth edges at any angle

Floats: TypeAlias = NDArray[np.float64]
Stencils: TypeAlias = Sequence[Sequence[Image.Image]]  # by class and source (a scan or a font)
Painter: TypeAlias = Callable[[Stencils, int, int, np.random.Generator], Floats]  # takes stencils, class, source


def render() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Draw the benchmark. Every call returns the same arrays.

    Returns:
        RGB images of shape (N, 3, 32, 32), domain indices of shape (N,) and class indices of shape (N,), sorted by
        domain, then class.
    """
    handwriting, others = _handwriting()
    glyphs = _glyphs()
    painters: list[tuple[Painter, Stencils]] = [
        (_handwritten, handwriting),
        (_printed, glyphs),
        (partial(_blended, _photos()), others),
        (_street, glyphs),
    ]
    images = []
    for position, (paint, stencils) in enumerate(painters):
        rng = np.random.default_rng((_SEED, position))
        for digit, sources in enumerate(stencils):  # a class cycles through its sources
            images += [_to_bytes(paint(stencils, digit, i % len(sources), rng)) for i in range(_PER_CELL)]
    domain, label, _ = np.indices((len(DOMAINS), len(CLASSES), _PER_CELL)).reshape(3, -1)
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), domain, label


# The four domains


def _handwritten(stencils: Stencils, label: int, source: int, rng: np.random.Generator) -> Floats:
    """Paint a digit in dark pen on nearly white paper."""
    coverage = _place(stencils[label][source], rng, height=(22, 27), angle=8, shear=0.1, drift=1.5)
    paper = rng.uniform(0.88, 1.0) * np.array([1.0, 1.0, rng.uniform(0.92, 1.0)])
    ink = rng.uniform(0.0, 0.25) + np.array([0.0, 0.0, rng.uniform(0.0, 0.35)])
    return _ink(coverage, ink, paper)


def _printed(stencils: Stencils, label: int, source: int, rng: np.random.Generator) -> Floats:
    """Paint a digit in a uniform colour on a uniform background, dark on light or light on dark."""
    coverage = _place(stencils[label][source], rng, height=(15, 26), angle=10, drift=3)
    ink, paper = _colours(rng, contrast=0.3, saturation=0.8)
    return _ink(coverage, ink, paper)


def _blended(
    photos: Sequence[Image.Image], stencils: Stencils, label: int, source: int, rng: np.random.Generator
) -> Floats:
    """Paint a photograph whose colours are inverted inside the digit: |patch - coverage| in every channel."""
    coverage = _place(stencils[label][source], rng, height=(22, 28), angle=8, shear=0.1, drift=1.5)
    return np.abs(_patch(photos, rng) - coverage[..., None])


def _street(stencils: Stencils, label: int, source: int, rng: np.random.Generator) -> Floats:
    """Paint a digit from a house number, with cropped neighbours, uneven light, blur and sensor noise."""
    before, after = rng.integers(len(CLASSES), size=2).tolist()
    alphabet = [glyphs[source] for glyphs in stencils]  # one house number, one font
    sign = _row(alphabet[before], alphabet[label], alphabet[after], gap=int(rng.integers(4, 24)))
    coverage = _place(sign, rng, height=(18, 26), angle=8, shear=0.25, drift=1.5)
    ink, paper = _colours(rng, contrast=0.2, saturation=rng.uniform(0.1, 0.7))
    lit = _ink(coverage, ink, paper) + rng.uniform(0, 0.15) * _ramp(rng)[..., None]
    return _blur(lit, rng.uniform(0.4, 1.3)) + rng.normal(0, rng.uniform(0.005, 0.03), lit.shape)


# Painting


def _place(
    stencil: Image.Image,
    rng: np.random.Generator,
    height: tuple[int, int],
    angle: float,
    drift: float,
    shear: float = 0,
) -> Floats:
    """Place a stencil at random near the centre of the canvas, and return its coverage of shape (32, 32).

    `height` is a range in pixels. `angle` (degrees), `drift` (pixels) and `shear` (horizontal pixels per vertical
    pixel) are the maximum values in either direction.
    """
    scale = _FINE * rng.uniform(*height) / stencil.height
    turn, slant = np.deg2rad(rng.uniform(-angle, angle)), rng.uniform(-shear, shear)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    centre = _FINE * (SIZE / 2 + rng.uniform(-drift, drift, size=2))
    # Pillow expects the inverse transform, from canvas to stencil.
    inverse = np.linalg.inv(scale * rotation @ np.array([[1.0, -slant], [0.0, 1.0]]))
    offset = np.array(stencil.size) / 2 - inverse @ centre
    matrix = np.column_stack([inverse, offset]).ravel().tolist()
    canvas = stencil.transform((_FINE * SIZE, _FINE * SIZE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(canvas.reduce(_FINE)) / 255


def _ink(coverage: Floats, ink: Floats, paper: Floats) -> Floats:
    """Blend two RGB colours, ink over paper, into an image of shape (32, 32, 3)."""
    return paper + coverage[..., None] * (ink - paper)


def _colours(rng: np.random.Generator, contrast: float, saturation: float) -> Floats:
    """Draw two RGB colours, as an array of shape (2, 3), whose brightness differs by at least `contrast`.

    A `saturation` of 1 allows all RGB colours, 0 only greys.
    """
    while True:
        vivid = rng.uniform(size=(2, 3))
        brightness = vivid @ [0.299, 0.587, 0.114]  # the weights of ITU-R BT.601
        if abs(brightness[0] - brightness[1]) >= contrast:
            grey = brightness[:, None]
            return np.asarray(grey + saturation * (vivid - grey))


def _patch(photos: Sequence[Image.Image], rng: np.random.Generator) -> Floats:
    """Crop a random square, 32 to 128 pixels wide, from a random photograph, and resize it to 32 × 32 pixels."""
    photo = photos[int(rng.integers(len(photos)))]
    side = rng.integers(SIZE, 4 * SIZE, endpoint=True)
    left, top = rng.integers((photo.width - side, photo.height - side), endpoint=True)
    patch = photo.resize((SIZE, SIZE), Image.Resampling.BOX, box=(left, top, left + side, top + side))
    return np.asarray(patch) / 255


def _row(left: Image.Image, middle: Image.Image, right: Image.Image, gap: int) -> Image.Image:
    """Join three stencils, `gap` pixels apart, into one stencil with `middle` at its centre."""
    margin = gap + max(left.width, right.width)
    row = Image.new("L", (middle.width + 2 * margin, middle.height))
    row.paste(left, (margin - gap - left.width, 0))
    row.paste(middle, (margin, 0))
    row.paste(right, (margin + middle.width + gap, 0))
    return row


def _ramp(rng: np.random.Generator) -> Floats:
    """Draw a linear gradient in a random direction, of shape (32, 32) and within [-1, 1]."""
    way = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    return np.asarray((x * np.cos(way) + y * np.sin(way)) / np.sqrt(2))


def _blur(image: Floats, radius: float) -> Floats:
    """Apply a Gaussian blur of `radius` pixels."""
    picture = Image.fromarray(_to_bytes(image))
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(radius))) / 255


def _to_bytes(images: Floats) -> NDArray[np.uint8]:
    """Convert floats to uint8: clip to [0, 1], scale and round to 0..255."""
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8)


# The sources


def _handwriting() -> tuple[Stencils, Stencils]:
    """Return stencils of scanned digits, first for the `handwritten` domain, then for the `blended` domain."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    # Not shuffled: neighbours in the file tend to share a writer, so most writers stay in one domain.
    cells = [[_trace(scan) for scan in scans.images[scans.target == label]] for label in range(len(CLASSES))]
    return [cell[:_PER_CELL] for cell in cells], [cell[_PER_CELL:] for cell in cells]


def _trace(scan: Floats) -> Image.Image:
    """Convert a scan of shape (8, 8), with values from 0 to 16, into a stencil.

    Each value counts the ink pixels in one 4 × 4 block of the original bitmap. Smooth interpolation and a steep
    contrast curve restore the strokes; plain enlargement would show the blocks.
    """
    framed = Image.fromarray(_to_bytes(np.pad(scan / 16, 1)))
    side = framed.width * _STENCIL // len(scan)
    smooth = np.asarray(framed.resize((side, side), Image.Resampling.LANCZOS)) / 255
    strokes = Image.fromarray(_to_bytes(0.5 + 5 * (smooth - 0.45)))
    return strokes.crop(strokes.getbbox())


def _glyphs() -> Stencils:
    """Return the stencils of the ten digits in every font."""
    fonts = [ImageFont.truetype(str(path), 96, layout_engine=ImageFont.Layout.BASIC) for path in _fonts()]
    return [[_stamp(font, digit) for font in fonts] for digit in CLASSES]


def _stamp(font: ImageFont.FreeTypeFont, digit: str) -> Image.Image:
    """Draw a digit in a font as a stencil of the standard height."""
    canvas = Image.new("L", (192, 192))
    ImageDraw.Draw(canvas).text((96, 96), digit, fill=255, font=font, anchor="mm")
    glyph = canvas.crop(canvas.getbbox())
    width = round(glyph.width * _STENCIL / glyph.height)
    return glyph.resize((width, _STENCIL), Image.Resampling.LANCZOS)


def _fonts() -> list[Path]:
    """Return matplotlib's fonts that contain digits, sorted by name.

    The glyph names tell whether a font draws digits. Most symbol fonts map digits to `.notdef`, a box or nothing.
    Others map them to different signs, such as `infinity` for 1 in cmsy10, or to old-style figures, as in cmmi10.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    names = "zero one two three four five six seven eight nine".split()

    def draws_digits(path: Path) -> bool:
        font = FT2Font(str(path))
        return [font.get_glyph_name(font.get_char_index(ord(digit))) for digit in CLASSES] == names

    return sorted(filter(draws_digits, Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")))


def _photos() -> list[Image.Image]:
    """Return the two photographs that ship with scikit-learn."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(photo) for photo in load_sample_images().images]


# The benchmark


def _draw_all() -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Return pixels, domains, labels and names. The images are drawn once and then read from the cache."""
    keys = ("images", "domain", "label")
    arrays = cached(f"digits-v{VERSION}", lambda: dict(zip(keys, render(), strict=True)))
    pixels, domain, label = (torch.from_numpy(arrays[key]) for key in keys)
    cells = zip(domain.tolist(), label.tolist(), strict=True)  # sorted, with the same number of images each
    paths = [f"{DOMAINS[d]}/{CLASSES[c]}/{row % _PER_CELL:03d}" for row, (d, c) in enumerate(cells)]
    return pixels, domain, label, paths


def _open(bench: Benchmark, root: Path | None, seed: int) -> Generated:
    if root is not None:
        raise MedicError("dataset 'digits' is built in and does not accept --root")
    return Generated(bench.name, bench.domains, bench.classes, _draw_all)


BENCHMARK = Benchmark(
    name="digits",
    description="built in: handwritten and printed digits, digits blended into photographs, and house numbers",
    reader=_open,
    built_in=True,
    domains=DOMAINS,
    classes=CLASSES,
    split="digits-6-4",
    image_size=SIZE,
    backbone="convnet",
    augment="digits",
    lr=0.06,
    counts=dict.fromkeys(DOMAINS, (_PER_CELL,) * len(CLASSES)),
)
