"""Functions that take any setting name all of them, for `help()` and for completion."""

import inspect

import pytest

import medic
from medic.config.settings import SETTINGS
from medic.errors import MedicError


@pytest.mark.parametrize("function", [medic.train, medic.sweep, medic.probe])
def test_every_setting_has_a_name_a_type_and_a_line(function):
    parameters = inspect.signature(function).parameters
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    assert parameters.keys() >= SETTINGS.keys() - {"seeds"}
    assert parameters["lr"].annotation is float
    for name, setting in SETTINGS.items():
        assert f"\n    {name}: {setting.help}" in function.__doc__


def test_names_from_other_codebases_are_accepted(mini):
    run = medic.train(dataset=mini, target="street", algorithm="erm", learning_rate=0.01, iterations=2, quiet=True)
    assert (run.method, run.config.optim.lr) == ("erm", 0.01)
    with pytest.raises(MedicError, match="lr is set twice, once as 'learning_rate': remove one of them"):
        medic.train(lr=0.1, learning_rate=0.01)
