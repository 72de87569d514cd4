"""One network of every family of timm that has a small one: it is built, loads weights, and is tuned in parts."""

import pytest
import torch
from safetensors.torch import save_file

from medic.errors import MedicError
from medic.models import create_backbone, native_size
from medic.models.backbones import import_timm
from medic.models.blocks import parameters_by_depth
from medic.models.tuning import LowRank, Tune, tune_backbone

FAMILIES = """
cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 convnext_atto_rms convnextv2_atto cpubone_nano crossvit_tiny_240
cs3darknet_focus_s csatv2 davit_tiny deit_tiny_patch16_224 densenet121 dla46_c dpn48b eca_botnext26ts_256
edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_b0 efficientvim_m1 efficientvit_b0
efficientvit_m0 ese_vovnet19b_slim_dw eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny
ghostnet_050 gmlp_ti16_224 hardcorenas_b hgnetv2_b0 hiera_tiny_224 hrnet_w18_small iformer_t inception_next_atto
inception_v3 inception_v4 lcnetv2_small legacy_seresnet18 legacy_xception levit_128 lowformer_b0 mambaout_femto
maxvit_pico_rw_256 mobilenetv2_100 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s1 mobilevit_xxs mvitv2_tiny
nest_tiny nextvit_small nf_regnet_b0 pit_ti_224 poolformer_s12 pvt_v2_b0 rdnet_tiny regnetx_004_tv repghostnet_050
repvit_m1 res2next50 resnest14d resnet18 resnetv2_18 rexnet_100 sam2_hiera_tiny selecsls42 sequencer2d_s shvit_s1
skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256
tf_efficientnet_lite0 tiny_vit_5m_224 tinynet_e tnt_s_legacy_patch16_224 tresnet_m twins_svt_small visformer_tiny
vit_medium_patch16_reg4_gap_256 vit_pe_core_tiny_patch16_384 vit_small_patch14_reg4_dinov2 vit_small_patch16_dinov3
vit_srelpos_small_patch16_224 vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224 xception41p
xcit_nano_12_p8_224
""".split()


def features(module, size):
    torch.manual_seed(0)
    with torch.no_grad():
        return module.eval()(torch.rand(1, 3, size, size))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES])
def test_a_network_of_every_family(name, tmp_path):
    size, file = native_size(name), tmp_path / "weights.safetensors"
    whole = import_timm(name).create_model(name, pretrained=False)
    state = whole.state_dict()  # with its classifier
    save_file({key: tensor.clone().contiguous() for key, tensor in state.items()}, file)
    backbone = create_backbone(name, weights=file)
    module = backbone.module
    output = features(module, size)
    assert output.shape == (1, backbone.features)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[key])
    groups = parameters_by_depth(module)
    assert len(groups) > 3
    assert sum(map(len, groups)) == len(list(module.parameters()))
    try:
        tune_backbone(module, Tune("adapters"))
    except MedicError:  # a convolutional network, or one whose attention has convolutions or layers of other names
        return
    called = set()
    adapters = [part for part in module.modules() if isinstance(part, LowRank)]
    for part in adapters:
        part.register_forward_hook(lambda part, *_: called.add(part))
    torch.testing.assert_close(features(module, size), output)
    assert called == set(adapters)


def test_a_head_without_outputs_is_left_out():
    """timm's InceptionNeXt without classes keeps a layer of no outputs."""
    backbone = create_backbone("inception_next_atto")
    assert features(backbone.module, 96).shape == (1, backbone.features)


def test_layers_of_two_features_have_no_adapter():
    """Such as the first one of the networks that compute the position biases of Swin V2 CR."""
    with torch.device("meta"):
        module = create_backbone("swinv2_cr_tiny_224").module
    tune_backbone(module, Tune("adapters"))
    adapted = [key for key, part in module.named_modules() if isinstance(part, LowRank)]
    assert len(adapted) > 40
    assert not [key for key in adapted if "meta_mlp.fc1" in key]
