"""Numbers that cannot be what they are for are refused before training, whatever the method."""

import math

import pytest

from medic.errors import MedicError, check_range
from medic.methods import METHODS
from medic.runs.config import RunConfig
from medic.runs.resolve import resolve


def numbers(mini, method):
    return resolve(RunConfig(dataset=mini, target="street", method=method, device="cpu")).config.hparams or {}


@pytest.mark.parametrize("method", METHODS)
def test_every_number_has_a_range(mini, method):
    for name in numbers(mini, method):
        for value in (-1, math.nan, math.inf):
            config = RunConfig(dataset=mini, target="street", method=method, hparams={name: value}, device="cpu")
            with pytest.raises(MedicError, match=rf"{name.split('.')[-1]}.* is {value}: give"):
                resolve(config)


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("rsc", "features", 5, "features of RSC is 5: give a number, 0 or more and 1 or less"),
        ("fishr", "ema", 1, "ema of Fishr is 1: give a number, 0 or more and below 1"),
        ("sandmask", "tau", 1, "tau of SAND-mask is 1: give a number, 0 or more and below 1"),
        ("arpl", "temperature", 0, "temperature of ARPL is 0: give a number, above 0"),
        ("mixstyle", "p", 2, "p of MixStyle is 2: give a number, 0 or more and 1 or less"),
        ("mldg-domainbed", "meta_test", 0, "meta_test of two steps is 0: give a number, 1 or more"),
    ],
)
def test_limits(mini, method, name, value, message):
    with pytest.raises(MedicError, match=message):
        resolve(RunConfig(dataset=mini, target="street", method=method, hparams={name: value}, device="cpu"))


def test_the_limits_themselves_are_in_unless_said_otherwise():
    check_range("x", 0, 1, low=0, high=1.0)
    with pytest.raises(MedicError, match="low of x is 0: give a number, above 0 and below 1"):
        check_range("x", 0, 1, above=True, below=True, low=0)
