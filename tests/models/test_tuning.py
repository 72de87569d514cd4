"""What is trained of a backbone, and adapters that are merged into its weights."""

import copy

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models import create_backbone
from medic.models.tuning import LowRank, Tune, merge_adapters, tune_backbone
from tests.messages import naming

VIT, CONVNEXT, RESNET = "test_vit", "test_convnext", "test_resnet"
"""Networks of timm with a few thousand weights."""


def make_backbone(name=VIT):
    torch.manual_seed(0)
    return create_backbone(name).module


def trained(module):
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def tuned(name, text, **numbers):
    module = make_backbone(name)
    tune_backbone(module, Tune(**{**vars(Tune.parse(text)), **numbers}))
    return module


@pytest.mark.parametrize("name", [VIT, CONVNEXT])
def test_adapters_start_at_the_pretrained_network(name):
    x = torch.randn(2, 3, 160, 160)
    plain, module = make_backbone(name).eval(), tuned(name, "adapters").eval()
    with torch.no_grad():
        assert torch.equal(plain(x), module(x))
    assert all(".lora_" in parameter for parameter in trained(module))


def test_a_rank_above_the_width_of_a_layer():
    with pytest.raises(MedicError, match=naming("rank 65 64 --lora-rank 64")):
        tuned(VIT, "adapters", rank=65)


def test_adapters_of_attention_and_mlp():
    layers = {name.rpartition(".")[0].rpartition(".")[2] for name in trained(tuned(VIT, "adapters"))}
    assert layers == {"qkv", "proj", "fc1", "fc2"}


@pytest.mark.parametrize(
    ("name", "pixels"), [(VIT, 160), ("eva02_tiny_patch14_224", 224), ("swinv2_tiny_window8_256", 256)]
)
def test_merged_adapters_compute_the_same(name, pixels):
    """EVA and Swin V2 can use the weight of their qkv layer without calling the layer, and so without its adapter."""
    module, plain = tuned(name, "adapters", rank=4, alpha=8.0).eval(), make_backbone(name).eval()
    for part in (*module.modules(), *plain.modules()):
        if isinstance(part, LowRank):
            nn.init.normal_(part.lora_b, std=0.1)
        elif isinstance(part, nn.LayerNorm):  # Swin V2 begins with residual branches that are multiplied by zero
            nn.init.ones_(part.weight)
    x = torch.randn(2, 3, pixels, pixels)
    merged = copy.deepcopy(module)
    merge_adapters(merged)
    output = module(x)
    output.square().sum().backward()
    moved = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert [name for name, gradient in moved.items() if gradient is None or not gradient.any()] == []
    with torch.no_grad():
        assert (output - plain(x)).abs().max() > 0.1
        assert (output - merged(x)).abs().max() < 1e-5 * output.abs().max()
        plain.load_state_dict(merged.state_dict())  # it has the tensors of the plain network, and no others
        assert (plain(x) - merged(x)).abs().max() < 1e-5 * output.abs().max()


def test_a_layer_that_is_used_twice_has_one_adapter():
    class Part(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.fc1 = layer

        def forward(self, x):
            return self.fc1(x)

    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    module = nn.Sequential(Part(shared), Part(shared))
    names = module.state_dict().keys()
    tune_backbone(module, Tune("adapters"))
    assert module[0].fc1 is module[1].fc1
    nn.init.normal_(module[0].fc1.lora_b)
    x = torch.randn(4, 16)
    output = module(x)
    merge_adapters(module)
    assert module[0].fc1 is module[1].fc1
    assert module.state_dict().keys() == names
    torch.testing.assert_close(module(x), output, rtol=1e-4, atol=1e-4)


def test_an_adapter_by_its_formula():
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    adapter = LowRank(layer, rank=2, alpha=3.0, dropout=0.0)
    nn.init.normal_(adapter.lora_b)
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = layer(x) + 3.0 / 2 * x @ adapter.lora_a.T @ adapter.lora_b.T
    assert torch.allclose(adapter(x), expected, rtol=0, atol=1e-14)
    assert torch.allclose(adapter.merged()(x), expected, rtol=0, atol=1e-14)


def test_dropout_of_an_adapter_in_training_alone():
    adapter = LowRank(nn.Linear(50, 3), rank=2, alpha=2.0, dropout=0.5)
    nn.init.normal_(adapter.lora_b)
    x = torch.randn(4, 50)
    assert not torch.equal(adapter(x), adapter(x))
    adapter.eval()
    assert torch.equal(adapter(x), adapter(x))


@pytest.mark.parametrize("name", [VIT, CONVNEXT, RESNET, "mnist-cnn"])
def test_norms(name):
    module = tuned(name, "norm")
    parts = dict(module.named_modules())
    assert trained(module)
    assert all("norm" in type(parts[parameter.rpartition(".")[0]]).__name__.lower() for parameter in trained(module))


@pytest.mark.parametrize(
    ("name", "parts"),
    [(VIT, ["blocks.5", "norm"]), (CONVNEXT, ["stages.3", "head.norm"]), (RESNET, ["layer4.0"])],
)
def test_the_last_block(name, parts):
    names = trained(tuned(name, "last:1"))
    assert all(any(parameter.startswith(f"{part}.") for parameter in names) for part in parts)
    assert all(parameter.startswith(tuple(f"{part}." for part in parts)) for parameter in names)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (RESNET, "adapters", "'adapters' linear --tune norm last:N"),
        (RESNET, "last:99", "'last:99' blocks --tune all"),
        ("convnet", "norm", "'norm' normalisation last:1"),
        ("convnet", "nothing", "'nothing' adapters head"),
        ("convnet", "last:0", "'last:0' last:N"),
    ],
)
def test_mistakes(name, text, message):
    with pytest.raises(MedicError, match=naming(message)):
        tuned(name, text)


def test_norms_of_other_kinds():
    """Such as the RMS norm of AIMv2, which timm defines itself."""
    from timm.layers import RmsNorm

    module = nn.Sequential(nn.Linear(4, 4), RmsNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4))
    tune_backbone(module, Tune.parse("norm"))
    assert trained(module) == ["1.weight", "2.weight", "2.bias", "3.weight"]
