"""Methods and penalties that are defined in the running process, in a script or in a notebook."""

import warnings
from dataclasses import dataclass, replace
from functools import partial

import pytest
from torch import Tensor

import medic
from medic.config.imports import LOCAL
from medic.config.resolve import resolve
from medic.errors import MedicError
from medic.objectives import Penalty
from medic.openset import SCORES, Score
from medic.openset.scores import max_logit
from medic.runs.reevaluate import recompute_outputs
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming
from tests.plugins import forgotten

SETTINGS = {"dataset": "digits", "target": "street", "method": "local"}


def define(scale: float) -> None:
    """Define a penalty and a method with it, as a cell or a script does."""

    @dataclass(eq=False)
    class Norm(Penalty, name="norm"):
        """Keep the logits small."""

        def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
            return scale * output.logits.square().mean()

    medic.METHODS["local"] = medic.Method("local", "a", "b", "c", preset={"penalty": "norm"})


@pytest.fixture(autouse=True)
def _forgotten():
    with forgotten():
        yield


def plugins(**settings: str) -> dict[str, str]:
    return dict(resolve({**SETTINGS, **settings}).plugins)


def test_code_that_is_defined_again_is_other_code():
    define(1.0)
    first = plugins()
    assert plugins() == first  # as when a sweep plans a run and then trains it
    define(1.0)  # what it calls may have changed
    assert plugins()[LOCAL] != first[LOCAL]


def test_a_method_of_existing_parts_is_known_by_its_values():
    """Such a method can be resumed by another process, because its hash depends on nothing else."""
    hashes = []
    for weight in (0.5, 0.5, 0.8):
        medic.METHODS["local"] = replace(medic.METHODS["medic++"], name="local", preset={"momentum": weight})
        hashes.append(plugins())
    assert hashes[0] == hashes[1] != hashes[2]
    assert set(hashes[0]) == {"method local"}


@pytest.mark.parametrize("entry", [
    Score("mine", partial(lambda power, output: output.logits.amax(1).double() ** power, 2), "a power"),
    Score("mine", type("Power", (), {"__call__": lambda self, output: output.logits.amax(1)})(), "an object"),
    Score("mine", max_logit, "a function of this package"),
])  # fmt: skip
def test_scores(entry):
    SCORES["mine"] = entry
    assert set(plugins(method="erm", score="mine")) == {"score mine" if entry.function is max_logit else LOCAL}


def test_a_base_class_counts():
    """A class is other code if a class that it inherits from is."""
    base = type("Base", (Penalty,), {"__module__": "__main__"})
    type("Derived", (base,), {"__module__": "medic.objectives", "__doc__": "Nothing."}, name="derived")
    assert LOCAL in plugins(method="erm", penalty="derived")


def test_training_follows_the_definition(mini, caplog):
    settings = {"dataset": mini, "target": "street", "method": "local", "iterations": 2, "quiet": True}
    define(0.0)
    first = medic.train(**settings)
    assert medic.train(**settings).path == first.path
    define(5.0)
    second = medic.train(**{**settings, "quiet": False})
    assert second.path != first.path
    assert second.records[-1]["loss"] > first.records[-1]["loss"]
    assert "code that exists in this process only" in caplog.text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recompute_outputs(second, "cpu")


@pytest.mark.parametrize("settings", [
    {"method": "local"}, {"method": "LOCAL"}, {"method": "erm", "penalty": "norm"},
])  # fmt: skip
def test_nothing_local_is_sent_to_other_processes(settings, tmp_path):
    define(1.0)
    with pytest.raises(MedicError, match=naming("exists only in this process imports= executor='here'")):
        medic.sweep({"seed": [0]}, dataset="digits", target="street", output=tmp_path, **settings)
    with pytest.raises(MedicError, match=naming("exists only in this process")):
        medic.sweep({name: [value] for name, value in settings.items()}, dataset="digits", target="street")


def test_a_sweep_in_this_process(mini, tmp_path):
    options = {"dataset": mini, "target": "street", "iterations": 2, "executor": "here", "output": tmp_path}
    for scale in (0.0, 5.0):
        define(scale)
        assert len(medic.sweep({"seed": [0, 1]}, method="local", quiet=True, **options)) == 2
    assert len(medic.load_runs(tmp_path)) == 4


def test_built_in_parts_are_not_local():
    for method in medic.METHODS:
        settings = {"dataset": "digits", "target": "street", "method": method}
        assert resolve(settings).plugins == ()
