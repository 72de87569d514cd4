"""The head that reads a map: two branches, and how they reach training but not evaluation."""

import copy

import pytest
import torch

from medic.data import Resident
from medic.errors import MedicError
from medic.models import HALVES, Classifier, create_backbone
from medic.systems.ebil_hads import ResidualBlock
from medic.training import infer
from medic.training.precision import Bf16Weights
from medic.utils.outputs import Output
from tests.messages import naming

X = torch.rand(4, 3, 32, 32)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Classifier(create_backbone("convnet"), 5, "branches")


def test_blocks():
    block = ResidualBlock(3, 2).double()
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    y = block.norm2(block.conv2(block.norm1(block.conv1(x)).relu()))
    torch.testing.assert_close(block(x), (y + block.shortcut[1](block.shortcut[0](x))).relu())
    assert block(x).shape == (2, 3, 3, 3)
    plain = ResidualBlock(3, 1).double()
    torch.nn.init.zeros_(plain.norm2.weight)
    assert torch.equal(plain(x), x.relu())


def test_outputs(model):
    output = model(X)
    first, second = output.branches
    assert output.logits.shape == second.logits.shape == (4, 5)
    assert output.features.shape == second.features.shape == (4, 64)
    assert output.logits is first.logits
    assert output.features is first.features
    torch.testing.assert_close(output.ova, (first.ova + second.ova) / 2)
    assert not torch.equal(first.features, second.features)
    block, shortcut = 2 * 64 * 64 * 9 + 4 * 64, 64 * 64 + 2 * 64
    heads = 2 * 15 * 65
    assert sum(p.numel() for p in model.heads()) == 2 * block + shortcut + 2 * 64 + heads
    assert len(model.state_dict()) == len({value.data_ptr() for value in model.state_dict().values()})


def test_a_branch(model):
    """Block, the shared batch norm, average, and in evaluation no dropout."""
    model.eval()
    maps = model.backbone(X).view(4, 64, 2, 2)
    for block, head, branch in zip(model.head.blocks, model.head.heads, model(X).branches, strict=True):
        features = model.head.norm(block(maps)).mean((2, 3))
        torch.testing.assert_close(branch.features, features)
        torch.testing.assert_close(branch.logits, head.close_head(features))
        torch.testing.assert_close(branch.ova.flatten(1), head.ova_head(features))


def test_dropout_is_for_training(model):
    zeros = [(model(X).features == 0).float().mean().item() for _ in range(20)]
    assert 0.05 < sum(zeros) / 20 < 0.15
    assert (model.eval()(X).features != 0).all()


def test_a_resnet():
    model = Classifier(create_backbone("resnet10t"), 3, "branches")
    assert model.head.norm.num_features == 512
    assert model(torch.rand(2, 3, 64, 64)).logits.shape == (2, 3)


def test_a_backbone_without_stages_is_refused():
    with pytest.raises(MedicError, match=naming("MnistCnn stages")):
        Classifier(create_backbone("mnist-cnn"), 3, "branches")


def test_nothing_stays_with_the_backbone(model):
    twin = copy.deepcopy(model)
    model(X)
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        twin.backbone.conv1.weight.zero_()
    torch.testing.assert_close(twin.eval()(X).logits, twin(torch.zeros_like(X)).logits)
    assert not torch.allclose(model.eval()(X).logits, twin(X).logits)


def test_stages_can_be_asked_for_too(model):
    model.tap()
    assert [maps.shape[-1] for maps in model(X).stages] == [16, 8, 4, 2]


def test_in_low_precision_logits_keep_theirs(model):
    lowered = Bf16Weights(model, model.backbone, compiled=False)
    with torch.autocast("cpu", torch.bfloat16):
        output = lowered(X)
    model.eval()
    assert {part.dtype for branch in output.branches for part in branch[:3]} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        low = lowered(X).logits
        torch.testing.assert_close(low, model(X).logits, rtol=0, atol=0)
    full = model(X).logits
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=0.1, atol=0.05)


def test_evaluation_leaves_branches_out(model):
    images = Resident((255 * X).byte())
    output = infer(model, images, torch.arange(3), HALVES, torch.device("cpu"))
    assert output.branches is None
    torch.testing.assert_close(output.ova, model.eval()(HALVES((255 * X[:3]).byte().float() / 255)).ova)


def test_outputs_are_joined_and_mapped_branch_by_branch():
    def output(value):
        part = torch.full((2, 3), float(value))
        return Output(part, branches=(Output(part, features=part + 1), Output(part + 2)))

    joined = Output.cat([output(0), output(10)])
    assert [branch.logits[:, 0].tolist() for branch in joined.branches] == [[0, 0, 10, 10], [2, 2, 12, 12]]
    assert joined.branches[0].features[:, 0].tolist() == [1, 1, 11, 11]
    assert joined.branches[1].features is None
    assert joined.map(lambda part: part[1:3]).branches[1].logits[:, 0].tolist() == [2, 12]
    assert joined.plus(joined).branches is None
    assert Output.cat([output(0), Output(torch.zeros(2, 3))]).branches is None
