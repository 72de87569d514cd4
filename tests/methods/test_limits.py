"""Hyperparameters out of their limits are refused before training, whatever the method."""

import math

import pytest

from medic.errors import MedicError
from medic.methods import METHODS
from medic.utils.parts import Limits
from tests.built import plan_of
from tests.messages import naming


@pytest.mark.parametrize("method", METHODS)
def test_every_hyperparameter_has_limits(mini, method):
    for name in plan_of(dataset=mini, method=method).config.settings["hparams"] or {}:
        for value in (-1, math.nan, math.inf):
            with pytest.raises(MedicError, match=naming(f"{name.split('.')[-1]} {value}")):
                plan_of(dataset=mini, method=method, hparams={name: value})


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("rsc", "features", 5, "features 5 0 1"),
        ("fishr", "ema", 1, "ema 1 0"),
        ("sandmask", "tau", 1, "tau 1 0"),
        ("arpl", "temperature", 0, "temperature 0"),
        ("mixstyle", "p", 2, "p 2 0 1"),
        ("mldg-domainbed", "meta_test", 0, "meta_test 0 1"),
    ],
)
def test_limits_of_methods(mini, method, name, value, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, method=method, hparams={name: value})


def test_limits_include_their_ends_unless_declared_otherwise():
    assert all(Limits(0, 1).allow(value) for value in (0, 0.5, 1))
    assert not any(Limits(0, 1).allow(value) for value in (-0.1, 1.1, math.nan, math.inf))
    within = Limits(0, 1, above=True, below=True)
    assert [within.allow(value) for value in (0, 0.5, 1)] == [False, True, False]
    assert not Limits().allow(math.inf)
