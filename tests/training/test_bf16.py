"""bf16 weights cast all at once are the weights that autocast casts one by one."""

import re
import warnings

import pytest
import torch

from medic.models import Classifier, create_backbone
from medic.objectives import ce, objective, ova
from medic.strategies import MultiStep, TwoStep
from medic.tasks import Step
from medic.training.precision import Bf16Weights
from tests.built import plan_of
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("mini")  # which registers the backbone `small`
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def steps(device):
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1, 2] * 2, device=device)
    return [Step(torch.randn(6, 3, 32, 32, generator=generator).to(device), y, (3, 3)) for _ in range(2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", [MultiStep(), TwoStep(), TwoStep(second_order=True)])
def test_gradients_are_those_of_autocast(device, strategy):
    torch.manual_seed(0)
    model = Classifier(create_backbone("small"), 3).to(device)
    updates = []
    for network in (model, Bf16Weights(model, model.backbone, compiled=False)):
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            update = strategy(network, steps(device), objective(ce, ova))
        updates.append((update.risks, [p.grad.clone() for p in model.parameters()]))
    (risks, plain), (lowered_risks, lowered) = updates
    torch.testing.assert_close(lowered_risks, risks, rtol=0, atol=0)
    for one, other in zip(lowered, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_weight_that_no_gradient_reaches_gets_none():
    model = Classifier(create_backbone("small"), 3)
    model.backbone.unused = torch.nn.Linear(4, 4)
    for network in (model, Bf16Weights(model, model.backbone, compiled=False)):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            MultiStep()(network, steps("cpu"), objective(ce))
        assert model.backbone.unused.weight.grad is None
        assert next(model.parameters()).grad is not None


def test_heads_and_parameters_keep_their_precision():
    model = Classifier(create_backbone("small"), 3)
    lowered = Bf16Weights(model, model.backbone, compiled=False)
    with torch.autocast("cpu", torch.bfloat16):
        output = lowered(torch.randn(2, 3, 32, 32))
    assert output.logits.dtype == torch.float32
    assert {p.dtype for p in lowered.parameters()} == {torch.float32}
    assert len(list(lowered.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("capabilities", "said"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, True),
        ({"avx512_bf16": True}, False),
        ({"amx_bf16": True}, False),
        ({"neon": True, "bf16": True}, False),
        ({}, False),  # torch does not know this CPU
    ],
)
def test_a_cpu_that_emulates_bf16_is_warned_of(monkeypatch, capabilities, said):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for precision in ("bf16", "fp32", "auto"):
            plan_of(precision=precision)
    named = [bool(re.search(naming("CPU bf16 --precision fp32"), str(one.message))) for one in caught]
    assert named == [True] * said
