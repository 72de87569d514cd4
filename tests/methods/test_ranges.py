"""Numbers that cannot be what they are for are refused before training, whatever the method."""

import math

import pytest

from medic.errors import MedicError
from medic.fields import check_range
from medic.methods import METHODS
from tests.built import recipe_of
from tests.messages import naming


def numbers(mini, method):
    return recipe_of(dataset=mini, method=method).settings["hparams"] or {}


@pytest.mark.parametrize("method", METHODS)
def test_every_number_has_a_range(mini, method):
    for name in numbers(mini, method):
        for value in (-1, math.nan, math.inf):
            config = RunConfig(dataset=mini, target="street", method=method, hparams={name: value})
            with pytest.raises(MedicError, match=naming(f"{name.split('.')[-1]} {value}")):
                resolve(config)


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("rsc", "features", 5, "features RSC 5 0 1"),
        ("fishr", "ema", 1, "ema Fishr 1 0"),
        ("sandmask", "tau", 1, "tau SAND-mask 1 0"),
        ("arpl", "temperature", 0, "temperature ARPL 0"),
        ("mixstyle", "p", 2, "p MixStyle 2 0 1"),
        ("mldg-domainbed", "meta_test", 0, "meta_test 0 1"),
    ],
)
def test_limits(mini, method, name, value, message):
    with pytest.raises(MedicError, match=naming(message)):
        recipe_of(dataset=mini, method=method, hparams={name: value})


def test_the_limits_themselves_are_in_unless_said_otherwise():
    check_range("x", 0, 1, low=0, high=1.0)
    with pytest.raises(MedicError, match=naming("low x 0 1")):
        check_range("x", 0, 1, above=True, below=True, low=0)
