"""Models of timm for other image sizes than their own."""

import pytest
import torch
from safetensors.torch import save_file

import medic
from medic.cli import main
from medic.errors import MedicError
from medic.models import create_backbone
from medic.models.backbones import import_timm
from tests.messages import naming
from tests.runs.short import SHORT


def saved(path, name, head=True):
    """Write weights of the native size, perturbed so that no tensor is constant; returns them."""
    torch.manual_seed(0)
    state = import_timm(name).create_model(name, num_classes=3 if head else 0).state_dict()
    state = {key: value + 0.02 * torch.randn(value.shape) for key, value in state.items()}
    save_file(state, path)
    return state


def outputs(module, size):
    with torch.no_grad():
        return module.eval()(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("name", "native", "size"), [
    ("test_vit", 160, 96),
    ("vit_tiny_patch16_224", 224, 160),
    pytest.param("deit_tiny_distilled_patch16_224", 224, 256, marks=pytest.mark.slow),
    pytest.param("swin_tiny_patch4_window7_224", 224, 128, marks=pytest.mark.nightly),
    pytest.param("mvitv2_tiny", 224, 128, marks=pytest.mark.nightly),
])  # fmt: skip
def test_weights_are_those_of_timm_at_any_size(tmp_path, name, native, size):
    """At the native size they are unchanged; at another, timm's own loader resamples the same tensors."""
    path = tmp_path / "w.safetensors"
    state = saved(path, name)
    unchanged = create_backbone(name, path)
    assert unchanged.preprocessing.size == native
    assert all(torch.equal(value, state[key]) for key, value in unchanged.module.state_dict().items())
    ours = create_backbone(name, path, size)
    assert ours.preprocessing.size == size
    assert ours.module.training
    overlay = {"state_dict": dict(state)}
    timm = import_timm(name).create_model
    theirs = timm(name, pretrained=True, num_classes=0, img_size=size, pretrained_cfg_overlay=overlay)
    resampled = [key for key, value in ours.module.state_dict().items() if value.shape != state[key].shape]
    assert resampled
    torch.testing.assert_close(ours.module.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert torch.equal(outputs(ours.module, size), outputs(theirs, size))


@pytest.mark.nightly
def test_weights_without_a_classifier_keep_their_names(tmp_path):
    """Timm's loader takes such a file for an old one and renames layers."""
    name, paths = "swin_tiny_patch4_window7_224", [tmp_path / "with.safetensors", tmp_path / "without.safetensors"]
    state = saved(paths[0], name)
    save_file({key: value for key, value in state.items() if not key.startswith("head.")}, paths[1])
    with_head, without = (create_backbone(name, path, 128).module.state_dict() for path in paths)
    torch.testing.assert_close(without, with_head, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "size", "message"), [
    ("test_vit", 100, "'test_vit' 100 16 --image-size 96"),
    ("test_vit", 7, "'test_vit' 7 16 --image-size 16"),
    ("mixer_s32_224", 230, "'mixer_s32_224' 230 32 --image-size 224"),
    ("levit_128s", 100, "'levit_128s' 100 --image-size 224"),
    ("eca_botnext26ts_256", 262, "'eca_botnext26ts_256' 262 --image-size 256"),
])  # fmt: skip
def test_sizes_that_timm_cannot_make(name, size, message):
    with pytest.raises(MedicError, match=naming(message)):
        create_backbone(name, size=size)


def test_weights_that_timm_cannot_resample(tmp_path):
    path = tmp_path / "w.safetensors"
    saved(path, "eca_botnext26ts_256")
    with pytest.raises(MedicError, match=naming("height_rel (31, 16) (23, 16) 192 --image-size")):
        create_backbone("eca_botnext26ts_256", path, 192)


def test_patches_of_another_network_are_not_resampled(tmp_path):
    """Timm would make kernels of 16 pixels out of 32."""
    path = tmp_path / "w.safetensors"
    state = saved(path, "test_vit")
    save_file({**state, "patch_embed.proj.weight": torch.zeros(64, 3, 32, 32)}, path)
    with pytest.raises(MedicError, match=naming("'patch_embed.proj.weight' (64, 3, 32, 32)")):
        create_backbone("test_vit", path, 96)


def test_positions_of_no_grid_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    state = saved(path, "test_vit")
    save_file({**state, "pos_embed": torch.zeros(1, 7, 64)}, path)
    with pytest.raises(MedicError, match=naming("'pos_embed' (1, 7, 64)")):
        create_backbone("test_vit", path)


@pytest.mark.slow
def test_a_run_at_another_size(mini, tmp_path):
    """It starts from resampled weights, and its model is made again at that size."""
    path = tmp_path / "w.safetensors"
    saved(path, "test_vit")
    settings = {**SHORT, "method": "erm", "backbone": "test_vit", "image_size": 96, "weights": str(path)}
    run = medic.train(dataset=mini, output=tmp_path / "runs", **settings)
    assert run.preprocessing.size == run.settings["image_size"] == 96
    assert run.model.backbone.pos_embed.shape == (1, 37, 64)
    assert run.model(torch.zeros(1, 3, 96, 96)).logits.shape == (1, 6)
    assert main(["evaluate", str(run.path), "--rerun", "--device", "cpu"]) == 0
