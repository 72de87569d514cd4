"""ALOFT: its windows, its noise, and its gradients."""

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models.aloft import Aloft, low_frequencies
from medic.models.gfnet import GFNet, GlobalFilter
from tests.messages import naming

VARIANTS = ["e", "s"]
ALWAYS = {"p": 1.0}


def spectra(batch, side=14, channels=8, dtype=torch.float64):
    """Half spectra of random images (B, side, side // 2 + 1, C)."""
    x = torch.randn(batch, side, side, channels, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return torch.fft.rfft2(x, dim=(1, 2), norm="ortho")


def shifted_window(spectrum):
    rows, columns = low_frequencies(*spectrum.shape[1:3], 0.5)
    return torch.fft.fftshift(spectrum, dim=1)[:, rows.start : rows.stop, columns.start : columns.stop]


def added(spectrum, perturbed):
    """What was added to the amplitudes of the window; a perturbed one may be negative."""
    before, after = shifted_window(spectrum), shifted_window(perturbed)
    return (after * before.conj()).real / before.abs() - before.abs()


@pytest.mark.parametrize(("side", "rows", "columns"), [
    (56, (9, 47), (0, 19)),
    (28, (5, 23), (0, 9)),
    (14, (3, 11), (0, 4)),
    (7, (1, 4), (0, 1)),
])  # fmt: skip
@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_window_changes(side, rows, columns, variant):
    spectrum = spectra(3, side, 2)
    changed = (Aloft(variant, **ALWAYS)(spectrum) != spectrum).any(0).any(-1)
    expected = torch.zeros(side, side // 2 + 1, dtype=torch.bool)
    expected[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
    assert torch.equal(torch.fft.fftshift(changed, dim=0), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_against_the_specification(variant):
    """The same, written as the formulas are: shift, amplitude and angle, noise, and back."""
    spectrum = spectra(6)
    torch.manual_seed(3)
    perturbed = Aloft(variant, factor=0.9, **ALWAYS)(spectrum)
    torch.manual_seed(3)
    torch.rand(())
    amplitude, angle = torch.fft.fftshift(spectrum.abs(), dim=1), spectrum.angle()
    low = amplitude[:, 3:12, 0:5]
    if variant == "e":
        new = low + 0.9 * torch.randn_like(low) * (low.var(0) + 1e-6).sqrt()
    else:
        mu, sig = low.mean((1, 2), keepdim=True), (low.var((1, 2), keepdim=True) + 1e-6).sqrt()
        new_mu = mu + 0.9 * torch.randn_like(mu) * (mu.var(0) + 1e-6).sqrt()
        new_sig = sig + 0.9 * torch.randn_like(sig) * (sig.var(0) + 1e-6).sqrt()
        new = new_sig * (low - mu) / sig + new_mu
    amplitude = amplitude.clone()
    amplitude[:, 3:12, 0:5] = new
    expected = torch.fft.ifftshift(amplitude, dim=1) * torch.exp(1j * angle)
    torch.testing.assert_close(perturbed, expected)
    assert (new < 0).any()  # it is not clamped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numbers", [{"factor": 0.0, "p": 1.0}, {"p": 0.0}])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_noise_is_the_identity(variant, numbers, dtype):
    spectrum = spectra(4, dtype=dtype)
    perturbed = Aloft(variant, **numbers)(spectrum)
    assert perturbed.dtype == spectrum.dtype
    torch.testing.assert_close(perturbed, spectrum, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_has_no_spread_stays(variant):
    """A batch of one; grids too small for a window; and for `s`, for a deviation over it."""
    aloft = Aloft(variant, **ALWAYS)
    alone, point = spectra(1), spectra(4, side=1)
    assert aloft(alone) is alone
    assert aloft(point) is point
    assert aloft(spectra(4, side=2)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_samples_move_by_the_root_of_epsilon(variant, dtype):
    """Noise of 1e-3 on each element; or on the mean, and again on the deviation."""
    torch.manual_seed(0)
    spectrum = spectra(1, dtype=dtype).expand(100, -1, -1, -1)
    moved = added(spectrum, Aloft(variant, **ALWAYS)(spectrum))
    size = 1e-3 if variant == "e" else 2**0.5 * 1e-3
    assert moved.square().mean().sqrt().item() == pytest.approx(size, rel=0.05)
    assert moved.abs().max() < 2e-2


def test_noise_by_element():
    """Over a large batch: of mean 0, and of the deviation of each element over the batch, times the factor."""
    torch.manual_seed(0)
    spectrum = spectra(4000, side=7, channels=3) * torch.tensor([0.1, 1, 10])
    noise = added(spectrum, Aloft("e", factor=0.7, **ALWAYS)(spectrum)) / shifted_window(spectrum).abs().std(0)
    torch.testing.assert_close(noise.mean(0), torch.zeros_like(noise[0]), rtol=0, atol=0.05)
    torch.testing.assert_close(noise.std(0), torch.full_like(noise[0], 0.7), rtol=0.05, atol=0)
    assert torch.corrcoef(noise.flatten(1).T).fill_diagonal_(0).abs().max() < 0.08  # each element has its own


def test_noise_by_statistics():
    """The means over the window, and the deviations, move by as much as they differ between samples."""
    torch.manual_seed(0)
    spectrum = spectra(4000, channels=3) * torch.tensor([0.1, 1, 10])
    before = shifted_window(spectrum).abs()
    after = before + added(spectrum, Aloft("s", factor=0.5, **ALWAYS)(spectrum))
    for statistic in (torch.mean, torch.std):
        old, new = statistic(before, dim=(1, 2)), statistic(after, dim=(1, 2))
        moved = (new - old) / old.std(0)
        torch.testing.assert_close(moved.mean(0), torch.zeros(3).double(), rtol=0, atol=0.03)
        torch.testing.assert_close(moved.std(0), torch.full((3,), 0.5).double(), rtol=0.05, atol=0)


def test_the_gate_opens_as_often_as_it_should():
    torch.manual_seed(0)
    aloft, spectrum = Aloft("e", p=0.3), spectra(2, side=4, channels=1)
    opened = sum(not torch.equal(aloft(spectrum), spectrum) for _ in range(1000))
    assert opened / 1000 == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients(variant):
    """Through amplitude, phase and statistics, once and twice, for fixed noise."""
    aloft, spectrum = Aloft(variant, **ALWAYS), spectra(3, side=4, channels=1).requires_grad_()

    def perturbed(spectrum):
        torch.manual_seed(5)
        return aloft(spectrum)

    assert torch.autograd.gradcheck(perturbed, spectrum, fast_mode=True)
    assert torch.autograd.gradgradcheck(perturbed, spectrum, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [0.0, 1e-45, 1e-30, 1e-9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_where_there_is_no_amplitude(variant, level, dtype):
    """Some elements, or all of a batch, are 0 or all but 0: values and gradients of both orders are finite."""
    torch.manual_seed(0)
    some = spectra(4, dtype=dtype)
    some[:2, ::3] *= level
    for spectrum in (some, spectra(4, dtype=dtype) * level):
        spectrum.requires_grad_()
        perturbed = Aloft(variant, **ALWAYS)(spectrum)
        (first,) = torch.autograd.grad(torch.view_as_real(perturbed).square().sum(), spectrum, create_graph=True)
        (second,) = torch.autograd.grad(torch.view_as_real(first).square().sum(), spectrum)
        for values in (perturbed, first, second):
            assert torch.view_as_real(values).isfinite().all()


def test_a_blank_image_trains():
    """What a black picture gives inside a network is a spectrum of zeros but for the mean."""
    torch.manual_seed(0)
    net = GFNet((8, 12), (1, 2), layer_scale=1.0, image_size=32)
    Aloft("e", p=1.0).insert(net, torch.empty(0))
    nn.init.zeros_(net.pos_embed)
    net(torch.zeros(3, 3, 32, 32)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_inserted_everywhere_and_in_training_only(variant):
    torch.manual_seed(0)
    net, images = GFNet((8, 12), (1, 2), layer_scale=1.0, drop_path=0.0, image_size=32), torch.randn(4, 3, 32, 32)
    plain, names = net(images), list(net.state_dict())
    Aloft(variant, factor=0.9, p=1.0, share=0.25).insert(nn.Sequential(net), torch.empty(0))
    filters = [module for module in net.modules() if isinstance(module, GlobalFilter)]
    assert [(f.perturb.variant, f.perturb.factor, f.perturb.p, f.perturb.share) for f in filters] == [
        (variant, 0.9, 1.0, 0.25)
    ] * 3
    assert list(net.state_dict()) == names
    assert not torch.allclose(net(images), plain)
    assert torch.equal(net.eval()(images), plain)


def test_what_cannot_be_is_refused():
    with pytest.raises(MedicError, match=naming("Linear gfnet_h_ti")):
        Aloft("e").insert(nn.Linear(2, 2), torch.empty(0))
    with pytest.raises(MedicError, match=naming("ALOFT 'x' e s")):
        Aloft("x")
    with pytest.raises(MedicError, match=naming("p 2")):
        Aloft("e", p=2)
