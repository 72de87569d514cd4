"""Several networks that answer as one."""

import pytest
import torch
from torch import nn

from medic.models import Classifier, Ensemble, assemble, create_backbone
from medic.models.mixstyle import MixStyle

X = torch.rand(5, 3, 32, 32)


def made(networks=3, backbone="convnet"):
    torch.manual_seed(0)
    return assemble([create_backbone(backbone) for _ in range(networks)], 6, "close")


def test_the_mean_softmax():
    model = made()
    assert isinstance(model, Ensemble)
    for network in model.networks:
        nn.init.normal_(network.head.close_head.weight, std=10.0)
    output, each = model(X), [network(X) for network in model.networks]
    torch.testing.assert_close(output.logits.softmax(1), torch.stack([own.logits.softmax(1) for own in each]).mean(0))
    energies = torch.stack([own.logits.logsumexp(1) for own in each])
    torch.testing.assert_close(output.logits.logsumexp(1), energies.mean(0))
    assert torch.equal(output.features, torch.cat([own.features for own in each], dim=1))
    assert output.features.shape == (5, model.features)
    assert model.classes == 6


def test_logits_that_are_far_apart():
    """Probabilities that float32 does not have are still told apart."""
    model = made(2)
    with torch.no_grad():
        for network, value in zip(model.networks, (1000.0, 2000.0), strict=True):
            network.head.close_head.weight.zero_()
            network.head.close_head.bias.copy_(value * torch.arange(6))
        logits = model(X).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:, 5] - logits[:, 4], torch.full((5,), 1000.0 + torch.tensor(2.0).log().item()))


def test_one_network_is_itself():
    alone = made(1)
    assert isinstance(alone, Classifier)
    torch.testing.assert_close(Ensemble([alone])(X).logits, alone(X).logits)


def test_heads_can_be_asked_alone():
    model = made()
    output = model(X)
    torch.testing.assert_close(model.classify(output.features).logits, output.logits)


def test_networks_are_drawn_each():
    model = made()
    first, second, _ = model.networks
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert not torch.equal(one, other) or not one.any()


def test_body_and_heads_are_all():
    model = made()
    parts = [*model.body(), *model.heads()]
    assert len(model.heads()) == 6
    assert {id(p) for p in parts} == {id(p) for p in model.parameters()}
    assert len(parts) == len({id(p) for p in parts})


def test_frozen_batch_norm():
    model = made(2, "resnet10t")
    model.norms = "frozen"
    assert model.norms == "frozen"
    model.train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert model.training
    assert not any(norm.training for norm in norms)


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_in_every_network(training):
    backbones, layer = [create_backbone("convnet") for _ in range(2)], MixStyle(p=1.0)
    for backbone in backbones:
        layer.insert(backbone.module, torch.zeros(1, 3, 32, 32))
    model = assemble(backbones, 6, "close").train(training)
    first, second = (model(X * torch.arange(1, 6).view(-1, 1, 1, 1)).features.chunk(2, dim=1) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) != training
