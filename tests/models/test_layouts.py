"""Weights in the layouts of other libraries load to the outputs of those libraries."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

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
            scale = 1 / math.sqrt(math.prod(tensor.shape[1:])) if tensor.ndim > 1 else 0.5
            tensor.copy_(torch.rand(tensor.shape, generator=generator).sub(0.5 * (tensor.ndim > 1)).mul(scale).add(
                0.5 * (tensor.ndim <= 1)))  # fmt: skip
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
    ("convnext_tiny", "convnext_tiny", 64),
    ("swin_tiny_patch4_window7_224", "swin_t", 224),
    pytest.param("vit_base_patch16_224", "vit_b_16", 224, marks=pytest.mark.slow),
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
    with pytest.raises(MedicError, match=naming("lack tensors --backbone")):
        create_backbone(name, tmp_path / "weights.pth", 32)


def test_sorted_tensors_of_torchvision(tmp_path):
    save_file(torchvision.models.mobilenet_v2(weights=None).state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(MedicError, match=naming("torchvision's order .pth")):
        create_backbone("mobilenetv2_100", tmp_path / "weights.safetensors", 64)
