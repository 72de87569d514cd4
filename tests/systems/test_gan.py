"""The generator and the discriminator of confusing samples."""

import pytest
import torch
from torch import nn

from medic.systems.arpl import LATENT, Discriminator, Generator, Patches


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        (32, 16 * (100 * 512 + 512 * 256 + 256 * 128 + 128 * 3) + 2 * (512 + 256 + 128)),
        (64, 16 * (100 * 512 + 512 * 256 + 256 * 128 + 128 * 64 + 64 * 3) + 2 * (512 + 256 + 128 + 64)),
    ],
)
def test_generator(size, parameters):
    torch.manual_seed(0)
    generator = Generator(3, size)
    assert count(generator) == parameters
    sides = []
    for module in generator.modules():
        if isinstance(module, nn.ConvTranspose2d):
            module.register_forward_hook(lambda _, __, maps: sides.append(maps.shape[-1]))
    pixels = generator(torch.randn(2, LATENT))
    assert pixels.shape == (2, 3, size, size)
    assert sides == [4, 8, 16, 32, 64][: len(sides)]
    assert 0 <= pixels.min() < pixels.max() <= 1


@pytest.mark.parametrize("size", [32, 64])
def test_discriminator(size):
    torch.manual_seed(0)
    discriminator = Discriminator(3).double()
    assert count(discriminator) == 16 * (3 * 128 + 128 * 256 + 256 * 512 + 512 * 1024) + 2 * (256 + 512) + 1025
    pixels = torch.rand(2, 3, size, size, dtype=torch.float64)
    logits = discriminator(pixels)
    maps = pixels
    for layer in list(discriminator.layers)[:-2]:
        maps = layer(maps)
    maps = nn.functional.conv2d(maps, discriminator.layers[-2].weight).sigmoid()
    assert maps.shape[1:] == (1024, *[1 if size == 32 else 5] * 2)
    torch.testing.assert_close(logits, discriminator.head(maps.mean((2, 3))).squeeze(1))


def test_other_channels():
    assert Generator(2, 32)(torch.randn(2, LATENT)).shape == (2, 2, 32, 32)
    assert Discriminator(2)(torch.rand(3, 2, 32, 32)).shape == (3,)


def test_patches_are_a_convolution():
    torch.manual_seed(0)
    patches = Patches(2, 3, (4, 3), bias=False).double()
    maps = torch.randn(2, 2, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(patches(maps), nn.functional.conv2d(maps, patches.weight))


def test_weights_start_as_in_dcgan():
    torch.manual_seed(0)
    for network in (Generator(3, 32), Discriminator(3)):
        convolutions = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
        scales = [m.weight for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        for weights, mean in ((convolutions, 0.0), (scales, 1.0)):
            values = torch.cat([weight.flatten() for weight in weights])
            assert values.mean().item() == pytest.approx(mean, abs=0.003)
            assert values.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
def test_bf16_gives_pixels_and_odds_in_full_precision():
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        pixels = Generator(3, 32)(torch.randn(2, LATENT))
        odds = Discriminator(3)(pixels)
    assert (pixels.dtype, odds.dtype) == (torch.float32, torch.float32)
