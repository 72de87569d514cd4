"""Pooling of the last map or tokens."""

import pytest
import torch
from safetensors.torch import save_file

import medic
from medic.errors import MedicError
from medic.models import create_backbone
from medic.runs.reevaluate import recompute_outputs
from tests.messages import naming


@pytest.mark.parametrize("pool", ["token", "avg", "max"])
def test_tokens_are_pooled(pool):
    x = torch.randn(2, 3, 160, 160)
    module = create_backbone("test_vit", pool=pool).module.eval()
    with torch.no_grad():
        tokens = module.forward_features(x)
        patches = tokens[:, 1:]
        expected = {"token": tokens[:, 0], "avg": patches.mean(1), "max": patches.amax(1)}[pool]
        torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("pool", ["avg", "max"])
def test_maps_are_pooled(pool):
    x = torch.randn(2, 3, 64, 64)
    module = create_backbone("test_resnet", pool=pool).module.eval()
    with torch.no_grad():
        maps = module.forward_features(x)
        expected = {"avg": maps.mean((2, 3)), "max": maps.amax((2, 3))}[pool]
        torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    ("backbone", "pool"), [("test_resnet", "token"), ("convnet", "avg"), ("efficientformer_l1", "max")]
)
def test_pools_that_a_backbone_cannot_have(backbone, pool):
    with pytest.raises(MedicError, match=naming(f"{backbone!r} {pool!r} --pool")):
        create_backbone(backbone, pool=pool)


def test_mistakes():
    with pytest.raises(MedicError, match=naming("'sum' own token avg max avgmax")):
        create_backbone("test_vit", pool="sum")
    with pytest.raises(MedicError, match=naming("'convnet' 'avg' not timm --pool")):
        create_backbone("convnet", pool="avg")
    with pytest.raises(MedicError, match=naming("size pixels '96'")):
        create_backbone("test_vit", size="96")


def test_a_run_with_another_pool_is_read_back(mini, tmp_path):
    torch.manual_seed(0)
    save_file(create_backbone("test_vit", size=32).module.state_dict(), tmp_path / "weights.safetensors")
    settings = {
        "dataset": mini, "target": "street", "iterations": 2, "batch_size": 4, "backbone": "test_vit", "pool": "avg",
        "image_size": 32, "weights": str(tmp_path / "weights.safetensors"), "device": "cpu", "track": "none",
    }  # fmt: skip
    run = medic.train(**settings, output=str(tmp_path / "runs"), quiet=True)
    assert run.predictor.network.backbone.global_pool == "avg"
    again = recompute_outputs(run, "cpu")["target"].output
    torch.testing.assert_close(again.logits, run.outputs("target").output.logits, rtol=0, atol=1e-6)
