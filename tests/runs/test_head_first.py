"""Training the head first, and then everything (LP-FT)."""

import pytest
import torch

import medic
from medic.errors import MedicError
from tests.built import built, plan_of
from tests.messages import naming
from tests.runs.parts import in_parts


def copied(parameters):
    return [parameter.detach().clone() for parameter in parameters]


@pytest.mark.parametrize("method", ["erm", "medic++", "medic", "fish-domainbed"])
def test_the_backbone_rests_until_then(mini, method):
    trainer = built(dataset=mini, method=method, batch_size=4, head_first=2, lr=0.1)
    body, heads = copied(trainer.model.body()), copied(trainer.model.heads())
    for _ in range(2):
        trainer.step()
    assert all(map(torch.equal, body, trainer.model.body()))
    assert not any(map(torch.equal, heads, trainer.model.heads()))
    assert len(trainer.trained) == len(body) + len(heads)
    trainer.step()
    assert not any(map(torch.equal, body, trainer.model.body()))


def test_momentum_of_the_backbone_starts_then(mini):
    """The first step of the backbone is a plain one, as if training started there."""
    trainer = built(dataset=mini, method="erm", batch_size=4, head_first=1, lr=0.1, weight_decay=0.0)
    trainer.step()
    body = copied(trainer.model.body())
    trainer.step()
    rate = trainer.rates[0] * trainer.schedule(1)
    for before, parameter in zip(body, trainer.model.body(), strict=True):
        torch.testing.assert_close(parameter.detach(), before - rate * parameter.grad)


@pytest.mark.parametrize("method", ["medic++", "fish-domainbed"])
@pytest.mark.parametrize("stops", [pytest.param((1, 3), marks=pytest.mark.slow), (2,)])
def test_interrupted_it_is_the_same(mini, tmp_path, monkeypatch, method, stops):
    settings = {
        "dataset": mini, "method": method, "target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 4,
        "head_first": 2, "device": "cpu", "track": "none", "quiet": True, "trial_seed": 0,
    }  # fmt: skip
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, stops)
    for name in ("model.safetensors", "predictions.npz"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_first": 9, "iterations": 8}, "head_first 9 8"),
        ({"head_first": 2, "tune": "head"}, "head_first --head-first"),
    ],
)
def test_mistakes(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, **settings)
