"""Gradient checkpointing: the same gradients, with less memory."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models import create_backbone
from medic.models.gfnet import GFNet
from medic.models.recompute import recompute_blocks
from tests.built import built, plan_of
from tests.messages import naming


def gradients(module, x):
    torch.manual_seed(1)
    return torch.autograd.grad(module(x).square().sum(), [*module.parameters()])


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet", "test_efficientnet"])
def test_gradients_are_the_same(name):
    torch.manual_seed(0)
    module = create_backbone(name).module.eval()
    other = copy.deepcopy(module)
    recompute_blocks(other)
    x = torch.randn(2, 3, 160, 160)
    assert all(map(torch.equal, gradients(module, x), gradients(other, x)))
    assert module.state_dict().keys() == other.state_dict().keys()


def test_random_layers_draw_the_same_again():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    module = nn.Sequential(copy.deepcopy(block), copy.deepcopy(block))
    other = copy.deepcopy(module)
    recompute_blocks(other)
    x = torch.randn(4, 8)
    assert all(map(torch.equal, gradients(module, x), gradients(other, x)))


def test_fewer_activations_are_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        module = create_backbone("test_vit").module
        module(torch.zeros(1, 3, 160, 160))
        plain, kept[:] = sum(kept), []
        recompute_blocks(module)
        module(torch.zeros(1, 3, 160, 160))
    assert sum(kept) < plain / 2


class Functional(nn.Module):
    """A block that calls a random function, as custom networks may."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(functional.dropout(self.first(x), 0.5, self.training))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (GFNet(dims=(8, 16), depths=(2, 2), drop_path=0.5, image_size=32), (8, 3, 32, 32)),
        (nn.Sequential(Functional(), Functional()), (4, 8)),
    ],
)
def test_random_paths_are_the_same_again(module, shape):
    other = copy.deepcopy(module)
    recompute_blocks(other)
    x = torch.randn(*shape)
    assert all(map(torch.equal, gradients(module, x), gradients(other, x)))


@pytest.mark.parametrize("method", ["erm", "medic++"])
def test_a_run_computes_the_same(mini, method):
    settings = {"dataset": mini, "method": method, "backbone": "test_vit", "image_size": 32, "batch_size": 4}
    trainers = [built(**settings, recompute=recompute) for recompute in (False, True)]
    for trainer in trainers:
        for _ in range(2):
            trainer.step()
    assert all(map(torch.equal, *(trainer.model.parameters() for trainer in trainers)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "test_resnet"}, "statistics --batch-norm frozen"),
        ({"method": "maml", "order": "second"}, "maml --order first"),
        ({"tune": "head"}, "--recompute head"),
        ({"compile": "on"}, "compile recompute"),
    ],
)
def test_mistakes(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, **{"backbone": "test_vit", "image_size": 32, "recompute": True, **settings})


def test_a_network_without_blocks():
    with pytest.raises(MedicError, match=naming("recompute blocks --recompute")):
        recompute_blocks(nn.Linear(2, 2))
