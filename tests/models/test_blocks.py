"""The blocks of a backbone, for layer-wise learning rates, partial fine-tuning and gradient checkpointing."""

import pytest
import torch
from torch import nn

from medic.models import create_backbone
from medic.models.blocks import find_blocks, parameters_by_depth


def names_by_depth(module):
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [[names[parameter] for parameter in group] for group in parameters_by_depth(module)]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("test_vit", 7), ("test_resnet", 5), ("test_convnext", 10), ("convnet", 4), ("gfnet_h_ti", 20),
        ("poolformer_s12", 13), ("pit_ti_224", 13),  # timm groups neither
        ("levit_128", 20), ("repvit_m1", 21),  # timm groups one as a whole, and the other one into two parts
    ],
)  # fmt: skip
def test_every_parameter_is_in_one_group(name, count):
    with torch.device("meta"):
        module = create_backbone(name).module
    groups = parameters_by_depth(module)
    assert len(groups) == count
    flat = [parameter for group in groups for parameter in group]
    assert len(flat) == len(set(flat))
    assert set(flat) == set(module.parameters())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)


class Nested(nn.Module):
    """A stem, two stages, of which the second one begins with a layer of its own, and a final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 2, bias=False)
        self.stage1 = nn.Sequential(Block(), Block())
        self.down = nn.Linear(2, 2, bias=False)
        self.stage2 = nn.ModuleList([Block()])
        self.norm = nn.LayerNorm(2)


def test_blocks_are_found_inside_stages():
    module = Nested()
    assert find_blocks(module) == [*module.stage1, *module.stage2]
    assert names_by_depth(module) == [
        ["stem.weight"],
        ["stage1.0.first.weight", "stage1.0.second.weight"],
        ["stage1.1.first.weight", "stage1.1.second.weight"],
        ["down.weight", "stage2.0.first.weight", "stage2.0.second.weight", "norm.weight", "norm.bias"],
    ]


def test_without_sequences_every_child_is_a_block():
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(1))
    module.conv1, module.conv2 = nn.Linear(2, 2), nn.Linear(2, 2)
    assert names_by_depth(module) == [["scale"], ["conv1.weight", "conv1.bias"], ["conv2.weight", "conv2.bias"]]
