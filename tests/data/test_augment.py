"""Batched augmentation against torchvision, image by image."""

import colorsys

import pytest
import torch

from medic.data.augment import RECIPES, Recipe, turn_hue
from medic.models import _torchvision


@pytest.fixture(scope="module")
def reference():
    _torchvision.ensure()
    import torchvision.transforms.v2.functional as reference

    return reference


@pytest.fixture
def pixels():
    return torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_jitter_equals_torchvision_with_the_same_factors(pixels, reference):
    """Brightness, contrast, saturation, hue, in this order. Torchvision's weight of red is 0.2989, ours 0.299."""
    j = 0.4
    ours = Recipe(jitter=j)(pixels, torch.Generator().manual_seed(3))
    draws = (torch.rand(4, 16, generator=torch.Generator().manual_seed(3)) * 2 - 1) * j
    for image, result, (b, c, s, h) in zip(pixels, ours, draws.T.tolist(), strict=True):
        expected = reference.adjust_brightness(image, 1 + b)
        expected = reference.adjust_contrast(expected, 1 + c)
        expected = reference.adjust_saturation(expected, 1 + s)
        expected = reference.adjust_hue(expected, h)
        assert (result - expected).abs().max() < 5e-5


def test_hue_equals_hsv(pixels):
    turned = turn_hue(pixels.double(), torch.full((16, 1, 1), 0.3, dtype=torch.float64))
    for old, new in zip(pixels[0].double().flatten(1).T.tolist(), turned[0].flatten(1).T.tolist(), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*old)
        assert new == pytest.approx(colorsys.hsv_to_rgb((h + 0.3) % 1, s, v), abs=1e-9)


def test_grey_has_no_hue(pixels):
    grey = torch.full((2, 3, 4, 4), 0.4)
    torch.testing.assert_close(turn_hue(grey, torch.full((2, 1, 1), 0.3)), grey)


def test_grey_takes_its_share():
    pixels = torch.rand(4000, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    result = Recipe(grey=0.1)(pixels, torch.Generator().manual_seed(1))
    lost = (result[:, 0] == result[:, 1]).all(-1).all(-1)
    assert lost.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert torch.equal(result[~lost], pixels[~lost])


def test_recipes(pixels):
    assert torch.equal(RECIPES["none"](pixels, torch.Generator()), pixels)
    a, b = (RECIPES["digits"](pixels, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(a, b)
    assert 0 <= a.min() <= a.max() <= 1
