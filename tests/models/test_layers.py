"""Stages of backbones, and what is put behind them."""

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models import Classifier, create_backbone
from medic.models.backbones import Backbone
from medic.models.mixstyle import MixStyle, mixed
from medic.models.stages import find_stages
from tests.messages import naming


def test_mixed_styles():
    """Two maps (0, 2) and (4, 8), half of each other's style: both become (2, 5)."""
    x = torch.tensor([[0.0, 2.0], [4.0, 8.0]], dtype=torch.float64).view(2, 1, 1, 2)
    styled = mixed(x, torch.full((2, 1, 1, 1), 0.5), torch.tensor([1, 0]))
    assert torch.allclose(styled.flatten(1), torch.tensor([[2.0, 5.0], [2.0, 5.0]], dtype=torch.float64), atol=2e-6)
    own = mixed(x, torch.ones(2, 1, 1, 1), torch.tensor([1, 0]))
    assert torch.allclose(own, x)


def test_statistics_are_constants():
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixed(x, torch.full((2, 1, 1, 1), 0.3), torch.tensor([1, 0])).sum(), x)
    deviation = (x.detach().var((2, 3)) + 1e-6).sqrt()
    assert torch.allclose(gradient[0], (0.3 * deviation[0] + 0.7 * deviation[1]).div(deviation[0]).expand(1, 8, 8))


def test_mixstyle_draws():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 8, 8) * torch.arange(1, 7).view(-1, 1, 1, 1)
    layer = MixStyle(p=0.5)
    changed = [not torch.equal(layer(x), x) for _ in range(400)]
    assert 0.42 < sum(changed) / 400 < 0.58
    always = MixStyle(p=1.0)(x)
    normal = (always - always.mean((2, 3), keepdim=True)) / always.std((2, 3), keepdim=True)
    assert torch.allclose(normal, (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True), atol=1e-3)
    assert torch.equal(MixStyle(p=0.0)(x), x)
    assert torch.equal(MixStyle(p=1.0).eval()(x), x)
    assert torch.equal(MixStyle(p=1.0)(x[:1]), x[:1])
    assert torch.equal(MixStyle(p=1.0)(x[:, :, :7]), x[:, :, :7])  # too small to have a style


def test_mixstyle_in_low_precision_keeps_its_type():
    assert MixStyle(p=1.0)(torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "stem", "channels"),
    [
        ("resnet10t", "MaxPool2d", [64, 128, 256, 512]),
        ("tf_efficientnet_lite0", "Sequential", [24, 40, 112, 320]),
        ("convnet", None, [64, 64, 64, 64]),
        ("convnext_atto", None, [40, 80, 160, 320]),
    ],
)
def test_stages(name, stem, channels):
    backbone = create_backbone(name)
    layout = find_stages(backbone.module)
    assert (None if layout.stem is None else type(layout.stem.module).__name__) == stem
    assert [stage.channels for stage in layout.stages] == channels
    model = Classifier(backbone, 3)
    tapped = model.tap()
    size = 32 if name == "convnet" else 64
    maps = model(torch.rand(2, 3, size, size)).stages
    assert tuple(part.shape[1] for part in maps) == tapped
    sides = [part.shape[2] for part in maps]
    assert sides == sorted(sides, reverse=True)
    assert len(model(torch.rand(1, 3, size, size)).stages) == len(maps)  # of this pass alone


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mnist-cnn", "gfnet_h_ti"])
def test_networks_without_stages(name):
    module = create_backbone(name, size=32).module if name == "gfnet_h_ti" else create_backbone(name).module
    with pytest.raises(MedicError, match=naming("stages ResNet")):
        MixStyle().insert(module, torch.zeros(1, 3, 32, 32))


class ChannelsLast(nn.Module):
    """A network that describes its stages as timm's do, with maps (N, H, W, C)."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 6)
        self.feature_info = [
            {"module": "first", "num_chs": 4, "reduction": 4},
            {"module": "second", "num_chs": 6, "reduction": 8},
        ]

    def forward(self, x):
        return self.second(self.first(x.permute(0, 2, 3, 1))).mean((1, 2))


def test_maps_with_the_channels_last_are_refused():
    message = "9 × channels ResNet"
    x = torch.rand(2, 3, 9, 9)
    with pytest.raises(MedicError, match=naming(message)):
        MixStyle().insert(ChannelsLast(), x)
    preprocessing = create_backbone("convnet").preprocessing
    tapped = Classifier(Backbone(ChannelsLast(), 6, preprocessing), 3)
    tapped.tap()
    for model in (tapped, Classifier(Backbone(ChannelsLast(), 6, preprocessing), 3, "branches")):
        with pytest.raises(MedicError, match=naming(message)):
            model(x)


def test_mixstyle_is_put_behind_all_stages_but_the_last():
    torch.manual_seed(0)
    backbone = create_backbone("convnet").module
    x, names = torch.rand(4, 3, 32, 32), list(backbone.state_dict())
    plain = backbone(x)
    MixStyle(p=1.0).insert(backbone, x[:1])
    assert list(backbone.state_dict()) == names
    assert not torch.equal(backbone.train()(x), plain)
    assert torch.equal(backbone.eval()(x), plain)
    assert [len(stage._forward_hooks) for stage in backbone.stages] == [1, 1, 1, 0]


@pytest.mark.parametrize(("numbers", "message"), [({"p": 1.5}, "p MixStyle 1.5"), ({"alpha": 0}, "alpha MixStyle 0")])
def test_mixstyle_refuses_numbers(numbers, message):
    with pytest.raises(MedicError, match=naming(message)):
        MixStyle(**numbers)


def test_mixstyle_refuses_images_without_a_map_to_mix():
    backbone = create_backbone("resnet10t").module
    with pytest.raises(MedicError, match=naming("24 ResNet --image-size")):
        MixStyle().insert(backbone, torch.zeros(1, 3, 24, 24))


def test_frozen_batch_norm_learns_its_scale_alone():
    model = Classifier(create_backbone("resnet10t"), 3)
    model.norms = "frozen"
    assert model.train() is model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.rand(4, 3, 64, 64)).logits.sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert model.backbone.training
    assert all(not norm.training and norm.weight.grad is not None for norm in norms)


class Staged(nn.Module):
    """A custom network that calls something `stages`."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Identity()])


@pytest.mark.parametrize("make", [Staged, lambda: create_backbone("pit_ti_224").module])
def test_networks_without_stages_that_medic_knows(make):
    with pytest.raises(MedicError, match=naming("backbone ResNet convnet")):
        MixStyle().insert(make(), torch.zeros(1, 3, 224, 224))
