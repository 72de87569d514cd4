"""Weights in the layouts of other libraries load to the outputs of those libraries."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models import _torchvision, create_backbone
from tests.messages import naming

_torchvision.ensure()
import torchvision  # noqa: E402, which needs the line above


def randomise(module):
    """Give every tensor values of its own, so that two tensors in each other's place show."""
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator)
            scale = 1 / math.sqrt(math.prod(tensor.shape[1:]))
            tensor.copy_(scale * (values - 0.5) if tensor.ndim > 1 else 0.5 + 0.5 * values)
    return module.eval()


def without_classifier(module):
    """Return a model of torchvision whose last linear layer passes features on."""
    name, last = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    parent, _, child = name.rpartition(".")
    assert last.out_features == 1000
    setattr(module.get_submodule(parent), child, nn.Identity())
    return module


TORCHVISION = [
    ("resnet18", "resnet18", 64),
    ("densenet121", "densenet121", 64),
    ("mobilenetv2_100", "mobilenet_v2", 64),
    ("efficientnet_b0", "efficientnet_b0", 64),
    pytest.param("convnext_tiny", "convnext_tiny", 64, marks=pytest.mark.slow),
    pytest.param("swin_tiny_patch4_window7_224", "swin_t", 224, marks=pytest.mark.nightly),
    pytest.param("vit_base_patch16_224", "vit_b_16", 224, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("name", "theirs", "size"), TORCHVISION)
@torch.no_grad()
def test_torchvision(tmp_path, name, theirs, size):
    model = randomise(getattr(torchvision.models, theirs)(weights=None))
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    x = torch.randn(2, 3, size, size)
    features = create_backbone(name, tmp_path / "weights.pth", size).module.eval()(x)
    assert (without_classifier(model)(x) - features).abs().max() <= 1e-5 * features.abs().max()


@pytest.mark.parametrize("name", ["tf_efficientnet_b0", "mobilenetv3_large_100", "convnet"])
def test_another_network_than_that_of_torchvision(tmp_path, name):
    torch.save(torchvision.models.efficientnet_b0(weights=None).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(MedicError, match=naming("missing tensors --backbone")):
        create_backbone(name, tmp_path / "weights.pth", 32)


def test_sorted_tensors_of_torchvision(tmp_path):
    save_file(torchvision.models.mobilenet_v2(weights=None).state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(MedicError, match=naming("torchvision's order .pth")):
        create_backbone("mobilenetv2_100", tmp_path / "weights.safetensors", 64)


def attention(x, weight, bias, heads):
    """Return softmax(q kᵀ / √d) v for tokens (N, T, D), with the three projections side by side."""
    parts = functional.linear(x, weight, bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def drawn(shapes):
    """Return tensors of these shapes by name, each with values of its own."""
    generator = torch.Generator().manual_seed(0)
    scales = {name: 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.5 for name, shape in shapes.items()}
    return {name: scales[name] * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def dinov2_shapes(width, depth, patch, grid, registers):
    block = {
        **{f"{norm}.{name}": (width,) for norm in ("norm1", "norm2") for name in ("weight", "bias")},
        "attn.qkv.weight": (3 * width, width), "attn.qkv.bias": (3 * width,),
        "attn.proj.weight": (width, width), "attn.proj.bias": (width,), "ls1.gamma": (width,), "ls2.gamma": (width,),
        "mlp.fc1.weight": (4 * width, width), "mlp.fc1.bias": (4 * width,),
        "mlp.fc2.weight": (width, 4 * width), "mlp.fc2.bias": (width,),
    }  # fmt: skip
    return {
        "cls_token": (1, 1, width), "pos_embed": (1, 1 + grid**2, width), "mask_token": (1, width),
        **({"register_tokens": (1, registers, width)} if registers else {}),
        "patch_embed.proj.weight": (width, 3, patch, patch), "patch_embed.proj.bias": (width,),
        **{f"blocks.{number}.{name}": shape for number in range(depth) for name, shape in block.items()},
        "norm.weight": (width,), "norm.bias": (width,),
    }  # fmt: skip


def dinov2(state, x, depth, heads):
    """Return the class token (N, D) that DINOv2 computes for images, from the names of its own files."""

    def norm(name, x):
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)

    def linear(name, x):
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    weight = state["patch_embed.proj.weight"]
    patches = functional.conv2d(x, weight, state["patch_embed.proj.bias"], stride=weight.shape[-1]).flatten(2).mT
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), patches], 1) + state["pos_embed"]
    if "register_tokens" in state:
        x = torch.cat([x[:, :1], state["register_tokens"].expand(len(x), -1, -1), x[:, 1:]], 1)
    for number in range(depth):
        b = f"blocks.{number}"
        inner = attention(norm(f"{b}.norm1", x), state[f"{b}.attn.qkv.weight"], state[f"{b}.attn.qkv.bias"], heads)
        x = x + state[f"{b}.ls1.gamma"] * linear(f"{b}.attn.proj", inner)
        hidden = functional.gelu(linear(f"{b}.mlp.fc1", norm(f"{b}.norm2", x)))
        x = x + state[f"{b}.ls2.gamma"] * linear(f"{b}.mlp.fc2", hidden)
    return norm("norm", x)[:, 0]


@pytest.mark.parametrize(("name", "registers"), [("vit_small_patch14_dinov2", 0), ("vit_small_patch14_reg4_dinov2", 4)])
@torch.no_grad()
def test_dinov2(tmp_path, name, registers):
    state = drawn(dinov2_shapes(width=384, depth=12, patch=14, grid=2, registers=registers))
    torch.save(state, tmp_path / "weights.pth")
    x = torch.randn(2, 3, 28, 28)
    features = create_backbone(name, tmp_path / "weights.pth", 28).module.eval()(x)
    assert (dinov2(state, x, depth=12, heads=6) - features).abs().max() <= 1e-5 * features.abs().max()


def clip_shapes(width, depth, patch, grid, outputs):
    block = {
        **{f"{norm}.{name}": (width,) for norm in ("ln_1", "ln_2") for name in ("weight", "bias")},
        "attn.in_proj_weight": (3 * width, width),
        "attn.in_proj_bias": (3 * width,),
        "attn.out_proj.weight": (width, width),
        "attn.out_proj.bias": (width,),
        "mlp.c_fc.weight": (4 * width, width),
        "mlp.c_fc.bias": (4 * width,),
        "mlp.c_proj.weight": (width, 4 * width),
        "mlp.c_proj.bias": (width,),
    }
    visual = {
        "class_embedding": (width,),
        "positional_embedding": (1 + grid**2, width),
        "proj": (width, outputs),
        "conv1.weight": (width, 3, patch, patch),
        **{f"{norm}.{name}": (width,) for norm in ("ln_pre", "ln_post") for name in ("weight", "bias")},
        **{f"transformer.resblocks.{i}.{name}": shape for i in range(depth) for name, shape in block.items()},
    }
    text = {"text_projection": (width, outputs), "token_embedding.weight": (10, width)}
    return {**{f"visual.{name}": shape for name, shape in visual.items()}, **text}


def clip(state, x, depth, heads):
    """Return the class token (N, D) before the projection that CLIP computes for images, from its own names."""
    state = {name.removeprefix("visual."): tensor for name, tensor in state.items()}

    def norm(name, x):
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def linear(name, x):
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    patches = functional.conv2d(x, state["conv1.weight"], stride=state["conv1.weight"].shape[-1]).flatten(2).mT
    x = torch.cat([state["class_embedding"].expand(len(x), 1, -1), patches], 1) + state["positional_embedding"]
    x = norm("ln_pre", x)
    for number in range(depth):
        b = f"transformer.resblocks.{number}"
        weights = state[f"{b}.attn.in_proj_weight"], state[f"{b}.attn.in_proj_bias"]
        x = x + linear(f"{b}.attn.out_proj", attention(norm(f"{b}.ln_1", x), *weights, heads))
        hidden = linear(f"{b}.mlp.c_fc", norm(f"{b}.ln_2", x))
        x = x + linear(f"{b}.mlp.c_proj", hidden * torch.sigmoid(1.702 * hidden))
    return norm("ln_post", x)[:, 0]


@pytest.mark.nightly
@torch.no_grad()
def test_clip(tmp_path):
    state = drawn(clip_shapes(width=768, depth=12, patch=32, grid=2, outputs=512))
    torch.save(state, tmp_path / "weights.pth")
    x = torch.randn(2, 3, 64, 64)
    backbone = create_backbone("vit_base_patch32_clip_quickgelu_224", tmp_path / "weights.pth", 64)
    features = backbone.module.eval()(x)
    assert (clip(state, x, depth=12, heads=12) - features).abs().max() <= 1e-5 * features.abs().max()
    assert backbone.preprocessing.mean == pytest.approx((0.4815, 0.4578, 0.4082), abs=1e-4)  # CLIP's own
