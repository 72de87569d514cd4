"""Images in each other's amplitude spectra."""

import torch
from torch import Tensor


def mix_amplitudes(images: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """Images (N, C, H, W) with the amplitudes (1 - λ) A + λ A' of every channel; their phases stay.

    A' are the amplitudes of their partners (N, C, H, W), and λ is `share` (N,). The values may leave the range that
    those of the images have.
    """
    spectrum, other = torch.fft.rfft2(images), torch.fft.rfft2(partners)  # half of it: images are real
    amplitude = torch.lerp(spectrum.abs(), other.abs(), share[:, None, None, None])
    mixed: Tensor = torch.fft.irfft2(torch.polar(amplitude, spectrum.angle()), s=images.shape[-2:])
    return mixed


def quantised(pixels: Tensor) -> Tensor:
    """Pixels that a byte can hold: cut off at 0 and 1, and rounded down to a multiple of 1/255."""
    return (255 * pixels.clamp(0, 1)).floor() / 255


def random_pairs(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """For each of so many the index of another (N,), and a share λ ~ U(0, 1) (N,) that both of a pair have.

    Of an odd number, one is the partner of one and has another itself. They are drawn on the device of `like`, the
    shares in its precision.
    """
    order = torch.rand(count, device=like.device).argsort()
    place = order.argsort()
    half = count // 2
    share = torch.rand(half, device=like.device, dtype=like.dtype)
    return order[(place + half) % count], share[place % half]
