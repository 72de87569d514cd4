"""GFNet: the filter's closed forms, the official state dict, and what training needs of it."""

import copy
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from medic.errors import MedicError
from medic.models.aloft import Aloft
from medic.models.gfnet import DropPath, GFNet, GlobalFilter, load_official
from tests.messages import naming

DIMS, DEPTHS, GRIDS = (64, 128, 256, 512), (3, 3, 10, 3), (56, 28, 14, 7)


def small(image_size=32, drop_path=0.1):
    """Two stages, of one and two blocks, on grids of 8x8 and 4x4 positions, whose blocks matter."""
    torch.manual_seed(0)
    return GFNet((8, 12), (1, 2), layer_scale=1.0, drop_path=drop_path, image_size=image_size)


@pytest.fixture(scope="module")
def h_ti():
    return GFNet().eval()


def official_shapes():
    """Names and shapes of the official state dict without its head."""
    shapes = {"pos_embed": (1, 56 * 56, 64), "norm.weight": (512,), "norm.bias": (512,)}
    for stage, (dim, depth, grid) in enumerate(zip(DIMS, DEPTHS, GRIDS, strict=True)):
        before, side = (3, 4) if stage == 0 else (DIMS[stage - 1], 2)
        shapes[f"patch_embed.{stage}.proj.weight"] = (dim, before, side, side)
        shapes[f"patch_embed.{stage}.proj.bias"] = (dim,)
        for index in range(depth):
            block = dict.fromkeys("gamma norm1.weight norm1.bias norm2.weight norm2.bias".split(), (dim,))
            block["filter.complex_weight"] = (grid, grid // 2 + 1, dim, 2)
            block |= {"mlp.fc1.weight": (4 * dim, dim), "mlp.fc1.bias": (4 * dim,)}
            block |= {"mlp.fc2.weight": (dim, 4 * dim), "mlp.fc2.bias": (dim,)}
            shapes |= {f"blocks.{stage}.{index}.{name}": shape for name, shape in block.items()}
    return shapes


def test_names_and_shapes_are_the_official_ones(h_ti):
    state = h_ti.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == official_shapes()
    assert len(state) == 201
    assert sum(p.numel() for p in h_ti.parameters()) == 14_572_096


@torch.no_grad()
def test_features(h_ti):
    assert h_ti(torch.randn(2, 3, 224, 224)).shape == (2, h_ti.num_features) == (2, 512)


def test_initial_values(h_ti):
    state = h_ti.state_dict()
    assert all((tensor == 1e-3).all() for name, tensor in state.items() if name.endswith("gamma"))
    assert all((tensor == 0).all() for name, tensor in state.items() if "fc" in name and name.endswith("bias"))
    for name in ("pos_embed", "blocks.2.4.filter.complex_weight", "blocks.2.4.mlp.fc1.weight"):
        assert state[name].std().item() == pytest.approx(0.02, rel=0.02)
    assert {module.eps for module in h_ti.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}


def test_drop_path_rates_grow_linearly(h_ti):
    rates = [module.drop_prob for module in h_ti.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx(torch.linspace(0, 0.1, 19, dtype=torch.double).tolist())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("side", [7, 8])
def test_filter_of_ones_is_the_identity(side, dtype, tolerance):
    layer, x = GlobalFilter(3, side).to(dtype), torch.randn(2, side, side, 3, dtype=dtype)
    with torch.no_grad():
        layer.complex_weight.copy_(torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(layer(x), x, rtol=0, atol=tolerance)


@pytest.mark.parametrize("side", [7, 8])
def test_filter_of_a_linear_phase_shifts_by_one_row(side):
    layer, x = GlobalFilter(3, side).double(), torch.randn(2, side, side, 3, dtype=torch.float64)
    angle = -2 * math.pi * torch.arange(side, dtype=torch.float64) / side
    phase = torch.stack([angle.cos(), angle.sin()], -1)
    with torch.no_grad():
        layer.complex_weight.copy_(phase[:, None, None].expand_as(layer.complex_weight))
    torch.testing.assert_close(layer(x), x.roll(1, dims=1))


def test_filter_is_a_circular_convolution():
    """The product of spectra, against sums over all positions."""
    side = 5
    layer, x = GlobalFilter(1, side).double(), torch.randn(1, side, side, 1, dtype=torch.float64)
    kernel = torch.fft.irfft2(torch.view_as_complex(layer.complex_weight)[..., 0], s=(side, side))
    expected = sum(kernel[i, j] * x.roll((i, j), dims=(1, 2)) for i in range(side) for j in range(side))
    torch.testing.assert_close(layer(x), expected)


def test_block_is_one_residual():
    block, x = small(drop_path=0.0).blocks[0][0], torch.randn(2, 8, 8, 8)
    with torch.no_grad():
        block.gamma.copy_(torch.rand(8))
    y = block.norm2(block.filter(block.norm1(x)))
    y = block.mlp.fc2(nn.functional.gelu(block.mlp.fc1(y)))
    torch.testing.assert_close(block(x), x + block.gamma * y)


def test_positions_are_row_major():
    """The stem's output, flattened as the official one is, and the order of `pos_embed` agree."""
    net = GFNet((8,), (0,), image_size=16).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    tokens = net.patch_embed[0].proj(x).flatten(2).transpose(1, 2) + net.pos_embed
    torch.testing.assert_close(net(x), net.norm(tokens).mean(1))


def test_drop_path_keeps_the_mean():
    torch.manual_seed(0)
    layer, x = DropPath(0.3), torch.ones(20_000, 2, 2)
    y = layer(x)
    assert torch.equal(y, y[:, :1, :1].expand_as(y))
    assert y.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert y.mean().item() == pytest.approx(1, abs=0.02)
    assert layer.eval()(x) is x
    with pytest.raises(MedicError, match=naming("drop path 1")):
        DropPath(1)


def test_perturbation_in_training_only():
    layer, x = GlobalFilter(3, 6), torch.randn(2, 6, 6, 3)
    plain = layer(x)
    layer.perturb = lambda spectrum: 2 * spectrum
    torch.testing.assert_close(layer(x), 2 * plain)
    torch.testing.assert_close(layer.eval()(x), plain, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # on a processor without bf16 it is slower
def test_filter_is_float32_under_autocast():
    layer, x = GlobalFilter(3, 6), torch.randn(2, 6, 6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        filtered, of_half = layer(x), layer(x.bfloat16())
    assert filtered.dtype == of_half.dtype == torch.float32
    torch.testing.assert_close(filtered, layer(x), rtol=0, atol=0)
    net = small().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        features = net(images)
    torch.testing.assert_close(features.float(), net(images), rtol=0, atol=0.05)


def test_gradients_with_other_weights():
    """Inner steps run the network with weights that are not its parameters, and differentiate twice."""
    net, images = small(drop_path=0.0).double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    weights = dict(net.named_parameters())
    first = torch.autograd.grad(net(images).square().sum(), list(weights.values()), create_graph=True)
    fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), first, strict=True)}
    second = torch.autograd.grad(functional_call(net, fast, (images,)).square().sum(), list(weights.values()))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in second)


@pytest.mark.parametrize("variant", ["e", "s"])
def test_a_step_asks_for_no_value(variant):
    """Fake tensors have no values: what would wait for the device, or branch on what is there, raises."""
    net = small()
    Aloft(variant).insert(net, torch.empty(0))
    with FakeTensorMode() as mode:
        weights = {name: mode.from_tensor(parameter) for name, parameter in net.named_parameters()}
        features = functional_call(net, weights, (torch.randn(4, 3, 32, 32),))
        gradients = torch.autograd.grad(features.sum(), list(weights.values()))
        assert [g.shape for g in gradients] == [p.shape for p in net.parameters()]
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):
            features.sum().item()


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["e", "s"])
def test_a_cuda_graph_holds_a_step(variant):
    net, images = small().cuda(), torch.randn(4, 3, 32, 32, device="cuda")
    Aloft(variant, p=1.0).insert(net, torch.empty(0))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for _ in range(3):
            net(images).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        features = net(images)
        features.sum().backward()
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(features.clone())
    assert torch.cat(replays).isfinite().all()
    assert not torch.equal(*replays)  # the noise is drawn anew


def test_sizes():
    with pytest.raises(MedicError, match=naming("32 200 --image-size")):
        GFNet(image_size=200)
    with pytest.raises(ValueError, match=naming("32x32 32x40")):
        small()(torch.rand(1, 3, 32, 40))


def official(net, **extra):
    return {"model": {**copy.deepcopy(net.state_dict()), "head.weight": torch.zeros(9, 12), **extra}}


@torch.no_grad()
def test_official_weights_load():
    net, other = small().eval(), GFNet((8, 12), (1, 2), image_size=32).eval()
    file, images = official(net), torch.randn(2, 3, 32, 32)
    for state in (file, file["model"]):
        converted = load_official(state, 32)
        assert converted.keys() == net.state_dict().keys()
        other.load_state_dict(converted, strict=True)
        assert torch.equal(other(images), net(images))


@torch.no_grad()
def test_official_weights_load_at_192_pixels(h_ti):
    smaller = GFNet(image_size=192).eval()
    state = {"model": {**h_ti.state_dict(), "head.weight": torch.zeros(1000, 512), "head.bias": torch.zeros(1000)}}
    smaller.load_state_dict(load_official(state, 192), strict=True)
    assert [blocks[0].filter.complex_weight.shape for blocks in smaller.blocks] == [
        (48, 25, 64, 2), (24, 13, 128, 2), (12, 7, 256, 2), (6, 4, 512, 2)
    ]  # fmt: skip
    assert smaller(torch.randn(1, 3, 192, 192)).shape == (1, 512)


def test_resizing():
    """Filters keep their corners, which are frequencies 0 and the highest; positions keep their order and level."""
    net = small()
    with torch.no_grad():
        net.pos_embed.copy_(torch.arange(8.0).repeat_interleave(8)[:, None].expand(64, 8))  # the row's number
    converted = load_official(net.state_dict(), 64)
    old, new = (state["blocks.1.1.filter.complex_weight"] for state in (net.state_dict(), converted))
    assert new.shape == (8, 5, 12, 2)
    assert new.is_contiguous()
    for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        torch.testing.assert_close(new[corner], old[corner])
    rows = converted["pos_embed"].view(16, 16, 8)
    torch.testing.assert_close(rows, rows[:, :1, :1].expand_as(rows))
    # New rows lie a quarter of an old one before and behind it, where torch's cubic gives 19/64.
    expected = torch.arange(2.0, 6.0)[:, None] + torch.tensor([-19, 19]) / 64
    torch.testing.assert_close(rows[4:12, 0, 0], expected.flatten())


def test_weights_of_something_else_are_refused():
    net = small()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*blocks\.7\.0\.gamma"):
        net.load_state_dict(load_official(official(net, **{"blocks.7.0.gamma": torch.zeros(8)}), 32), strict=True)
    lacking = official(net)
    del lacking["model"]["blocks.0.0.gamma"]
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks\.0\.0\.gamma"):
        net.load_state_dict(load_official(lacking, 32), strict=True)
    with pytest.raises(MedicError, match=naming("'pos_embed'")):
        load_official(nn.Linear(2, 2).state_dict(), 32)
    with pytest.raises(MedicError, match=naming("65 positions")):
        load_official({"pos_embed": torch.zeros(1, 65, 8)}, 32)
