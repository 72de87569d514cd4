"""Backbones, heads and weight files."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models import Classifier, ConvNet, backbones, create_backbone
from medic.models.backbones import native_size, synchronise_batch_norm
from tests.messages import naming


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "count", "shape", "features"), [
    ("convnet", 112_576, (3, 32, 32), 256),
    ("mnist-cnn", 371_136, (2, 28, 28), 128),
])  # fmt: skip
def test_our_backbones(name, count, shape, features):
    backbone = create_backbone(name)
    assert parameters(backbone.module) == count
    assert backbone.features == features
    assert backbone.module(torch.rand(2, *shape)).shape == (2, features)


def test_convnet_equals_relu_before_pooling():
    model, x = ConvNet().double(), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    y = x
    for convolution in (model.conv1, model.conv2, model.conv3, model.conv4):
        y = functional.max_pool2d(functional.relu(convolution(y)), 2)
    expected = torch.autograd.grad(y.pow(2).sum(), list(model.parameters()))
    ours = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()))
    torch.testing.assert_close(model(x), y.flatten(1))
    torch.testing.assert_close(ours, expected)


def test_convnet_refuses_other_sizes():
    with pytest.raises(ValueError, match="28x28"):
        ConvNet()(torch.rand(1, 3, 28, 28))


def test_any_timm_backbone():
    """A network with a layer between pooling and classifier, and one with other input statistics."""
    backbone = create_backbone("mobilenetv3_small_050")
    assert backbone.module(torch.rand(2, 3, 32, 32)).shape == (2, backbone.features)
    assert backbone.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))
    assert create_backbone("tf_efficientnet_lite0").preprocessing.mean == (0.5, 0.5, 0.5)


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(MedicError, match=naming("'resnet5O' 'resnet50'")):
        create_backbone("resnet5O")
    with pytest.raises(MedicError, match=naming("'convnet'")):
        create_backbone("convnett")
    with pytest.raises(MedicError, match=naming("'resnet18.nope' 'resnet18.tv_in1k'")):
        native_size("resnet18.nope")


@pytest.mark.parametrize(("head", "outputs"), [("close", 5), ("separate", 15), ("shared", 10)])
def test_heads(head, outputs):
    backbone = create_backbone("convnet")
    model = Classifier(backbone, 5, head)
    output = model(torch.rand(2, 3, 32, 32))
    assert parameters(model) == 112_576 + outputs * 257
    assert output.logits.shape == (2, 5)
    assert (output.ova is None) == (head == "close")
    if head == "shared":
        assert torch.equal(output.logits, output.ova[:, 1])
        assert not any("close" in name for name in model.state_dict())
    assert len(model.heads()) == {"close": 2, "separate": 4, "shared": 2}[head]


def test_heads_start_near_zero():
    model = Classifier(create_backbone("convnet"), 6)
    assert model.head.close_head.bias.abs().max() == 0
    bound = 0.1 * (6 / (256 + 6)) ** 0.5
    assert 0.9 * bound < model.head.close_head.weight.abs().max() <= bound


class TestWeights:
    @pytest.fixture
    def state(self):
        return {**ConvNet().state_dict(), "fc.weight": torch.zeros(3, 256)}

    @pytest.mark.parametrize("suffix", ["safetensors", "pt"])
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_both_formats(self, tmp_path, state, suffix, wrapped):
        path = tmp_path / f"weights.{suffix}"
        half = {key: value.half() for key, value in state.items()}
        if suffix == "pt":
            torch.save({"state_dict": half} if wrapped else half, path)
        else:
            save_file({f"backbone.{k}": v for k, v in half.items()} if wrapped else half, path)
        if wrapped and suffix == "safetensors":
            half.pop("fc.weight")
        loaded = create_backbone("convnet", path).module.state_dict()
        assert loaded["conv1.weight"].dtype == torch.float32
        assert torch.equal(loaded["conv1.weight"], half["conv1.weight"].float())

    @pytest.mark.parametrize(("change", "message"), [
        (lambda s: s.pop("conv2.weight"), "1 'conv2.weight'"),
        (lambda s: s.update({"layer9.weight": torch.zeros(1)}), "'layer9.weight'"),
        (lambda s: s.update({"conv2.weight": torch.zeros(1)}), "'conv2.weight' (1,)"),
    ])  # fmt: skip
    def test_files_of_another_network(self, tmp_path, state, change, message):
        change(state)
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(MedicError, match=naming(message)):
            create_backbone("convnet", tmp_path / "w.safetensors")

    def test_a_gfnet_in_one_dimension(self, tmp_path):
        state = create_backbone("gfnet_h_ti").module.state_dict()
        save_file({**state, "pos_embed": torch.zeros(5)}, tmp_path / "w.safetensors")
        with pytest.raises(MedicError, match=naming("'pos_embed' (5,)")):
            create_backbone("gfnet_h_ti", tmp_path / "w.safetensors")

    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
    def test_unreadable_files(self, tmp_path, name):
        path = tmp_path / name
        with pytest.raises(MedicError, match=naming(str(path))):
            create_backbone("convnet", path)
        for content in (b"not weights", b"hello"):
            path.write_bytes(content)
            with pytest.raises(MedicError, match=naming(f"weights {path}")) as raised:
                create_backbone("convnet", path)
        assert str(raised.value).endswith("are damaged, or neither a safetensors nor a torch file")

    @pytest.mark.parametrize(("change", "kind"), [
        (lambda t: t.int(), "torch.int32"),
        (lambda t: t.to(torch.complex64), "torch.complex64"),
        (lambda t: t.to_sparse(), "dense"),
        (lambda t: t.to("meta"), "dense"),
    ])  # fmt: skip
    def test_only_dense_floating_point(self, tmp_path, state, change, kind):
        state["conv2.weight"] = change(state["conv2.weight"])
        torch.save(state, tmp_path / "w.pt")
        with pytest.raises(MedicError, match=naming(f"{tmp_path}/w.pt 'conv2.weight' {kind}")):
            create_backbone("convnet", tmp_path / "w.pt")

    def test_code_in_a_torch_file_is_not_run(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return (tmp_path.joinpath("ran").touch, ())

        torch.save({"conv1.weight": Evil()}, tmp_path / "w.pt")
        with pytest.raises(MedicError):
            create_backbone("convnet", tmp_path / "w.pt")
        assert not (tmp_path / "ran").exists()


def test_a_torchscript_archive_names_the_conversion(tmp_path, recwarn):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path := tmp_path / "ViT-B-32.pt")
    with pytest.raises(MedicError) as raised:
        create_backbone("convnet", path)
    assert str(raised.value).endswith(
        "are a TorchScript archive: convert them with torch.save(torch.jit.load('ViT-B-32.pt').state_dict(), "
        "'weights.pth')"
    )
    assert "weights_only" not in "".join(str(warning.message) for warning in recwarn)


@pytest.mark.parametrize(("saved", "backbone", "message"), [
    ("convnet", "mnist-cnn", "are missing 8 tensors of backbone mnist-cnn, such as 'bn0.weight': "
     "they match --backbone convnet"),
    ("resnet18", "convnet", "are missing 7 tensors of backbone convnet, such as 'conv1.bias': "
     "they match --backbone resnet18"),
    ("resnet18", "resnet34", "are missing 80 tensors of backbone resnet34, such as 'layer1.2.conv1.weight': "
     "they match --backbone resnet18"),
    ("resnet10t", "convnet", "are missing 8 tensors of backbone convnet, such as 'conv1.weight': they belong to a "
     "different backbone; select it with --backbone"),
])  # fmt: skip
@pytest.mark.parametrize("counters", [True, False])
def test_weights_of_another_backbone_name_the_one_that_they_fit(
    tmp_path, monkeypatch, saved, backbone, message, counters
):
    """Files of other libraries may lack the batch-norm counters."""
    monkeypatch.setattr(backbones, "COMMON", ("resnet18", "resnet34"))
    path = tmp_path / "w.safetensors"
    state = create_backbone(saved).module.state_dict()
    save_file({key: state[key] for key in state if counters or not key.endswith("num_batches_tracked")}, path)
    with pytest.raises(MedicError) as raised:
        create_backbone(backbone, str(path))
    assert str(raised.value) == f"weights {path} {message}"


def test_a_hint_for_weights_builds_no_custom_network(tmp_path, monkeypatch):
    """Which may fail without memory for its tensors."""

    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, int(torch.linspace(4, 5, 2)[0].item())))

    monkeypatch.setattr(backbones, "OURS", dict(backbones.OURS))
    monkeypatch.setitem(backbones.OURS, "nets:network", (lambda size: network(), backbones.HALVES))
    save_file({"other.weight": torch.zeros(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(MedicError, match=naming("resnet18 different backbone")):
        create_backbone("resnet18", weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_synchronised_batch_norm_computes_the_same(name):
    """timm's layers of EfficientNet contain an activation, too."""
    module = create_backbone(name).module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.running_mean)
    x = torch.randn(2, 3, 96, 96)
    expected = module(x)
    converted = synchronise_batch_norm(module)
    assert any(isinstance(layer, nn.SyncBatchNorm) for layer in converted.modules())
    assert torch.equal(converted(x), expected)
