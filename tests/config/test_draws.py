"""DomainBed's draws, where a method has more to it than one optimizer and its own penalty."""

import dataclasses

import pytest

from medic.data import BENCHMARKS
from tests.built import plan_of


def drawn(mini, **settings):
    return plan_of(dataset=mini, hparams_seed=1, image_size=64, **settings)


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """DomainBed draws a weight decay for large images alone."""
    monkeypatch.setattr("medic.config.draws.SMALL", 0)


def test_the_decay_of_fish_is_that_of_its_inner_adam(mini):
    plan = drawn(mini, method="fish-domainbed")
    strategy = plan.parts.strategy.build()
    assert plan.config.optim.weight_decay == 0
    assert plan.config.optim.lr in (0.05, 0.1, 0.5)
    assert 1e-6 <= strategy.decay <= 1e-2
    assert strategy.lr < 1e-3


def test_the_decay_of_mldg_is_that_of_both(mini):
    plan = drawn(mini, method="mldg-domainbed")
    assert plan.config.optim.weight_decay == plan.parts.strategy.build().decay > 0


def test_the_decay_of_mvdg_is_its_own(mini):
    assert drawn(mini, method="mvdg", optimizer="adam").parts.strategy.build().decay == 5e-4


def test_an_exchanged_penalty_brings_its_own_search_ranges(mini):
    hparams = drawn(mini, method="vrex", penalty="hgp", optimizer="adam").config.objective.hparams
    assert {"alpha", "beta"} <= set(hparams)
    own = drawn(mini, method="hgp", optimizer="adam").config.objective.hparams
    assert hparams == own
    beside = drawn(mini, method="mldg-domainbed", penalty="balance", objective="ce+ova").config.objective.hparams
    assert {"beta", "meta_test", "decay", "weight"} <= set(beside)


@pytest.mark.parametrize(
    ("method", "dataset", "number", "value"),
    [("miro", "pacs", "weight", 0.01), ("swad", "vlcs", "ratio", 0.2), ("mixstyle", "office-home", "stages", 2)],
)
def test_defaults_on_a_benchmark(mini, monkeypatch, method, dataset, number, value):
    monkeypatch.setitem(BENCHMARKS, dataset, dataclasses.replace(BENCHMARKS[mini], name=dataset, split=None))
    usual, elsewhere = plan_of(dataset=dataset, method=method), plan_of(dataset=mini, method=method)
    explicit = plan_of(dataset=dataset, method=method, hparams={number: 1})
    assert usual.config.objective.hparams[number] == value
    assert elsewhere.config.objective.hparams[number] != value
    assert explicit.config.objective.hparams[number] == 1
