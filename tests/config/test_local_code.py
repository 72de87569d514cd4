"""Methods and penalties that are defined in the running process, in a script or in a notebook."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

import medic
from medic.config.imports import SESSION
from medic.config.resolve import resolve
from medic.errors import MedicError
from medic.objectives import Penalty
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming
from tests.plugins import forgotten

SETTINGS = {"dataset": "digits", "target": "street", "method": "local"}


def define(scale: float, module: str = "__main__") -> None:
    """Define a penalty and a method with it, as a cell or a script does."""

    class Norm(Penalty, name="norm"):
        """Keep the logits small."""

        def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
            return scale * output.logits.square().mean()

    Norm.__module__ = module
    dataclass(eq=False)(Norm)
    medic.METHODS["local"] = medic.Method("local", "a", "b", "c", preset={"penalty": "norm"})


@pytest.fixture
def notebook(monkeypatch):
    """Run the code of the test as code that is in no file."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with forgotten():
        yield


def plugins() -> list:
    return [plugin for plugin in resolve(SETTINGS).plugins if plugin.name != "digits"]


def test_a_cell_that_runs_again_gives_other_code(notebook):
    define(1.0)
    first = plugins()
    assert {plugin.name for plugin in first} == {SESSION}
    assert plugins() == first  # as when a sweep plans a run and then trains it
    define(100.0)
    assert not {plugin.sha256 for plugin in plugins()} & {plugin.sha256 for plugin in first}


def test_training_follows_the_cell(notebook, mini):
    settings = {"dataset": mini, "target": "street", "method": "local", "iterations": 2, "quiet": True}
    define(0.0)
    first = medic.train(**settings)
    assert medic.train(**settings).path == first.path
    define(5.0)
    second = medic.train(**settings)
    assert second.path != first.path
    assert second.records[-1]["loss"] > first.records[-1]["loss"]


def test_a_script_that_runs_again_gives_the_same_code(monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("first version")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)

    def run() -> list:
        with forgotten():
            found = []
            for scale in (1.0, 2.0):  # as a loop over variants of a penalty
                define(scale)
                found.append(plugins())
            return found

    first, second = run()
    assert {plugin.name for plugin in first} == {str(script)}
    assert first != second
    assert run() == [first, second]
    script.write_text("second version")
    assert first not in run()


def test_the_module_of_a_class_counts(monkeypatch, tmp_path):
    (tmp_path / "norms.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import norms

    with forgotten():
        define(1.0, "norms")
        names = {plugin.name for plugin in plugins()}
    assert str(Path(norms.__file__)) in names
    del sys.modules["norms"]


def test_nothing_local_is_sent_to_other_processes(notebook):
    define(1.0)
    for settings in ({"method": "local"}, {"method": "erm", "penalty": "norm"}):
        with pytest.raises(MedicError, match=naming("exists only in this process imports= executor='here'")):
            medic.sweep({"seed": [0]}, dataset="digits", target="street", **settings)
    with pytest.raises(MedicError, match=naming("'norm' exists only in this process")):
        medic.sweep({"penalty": ["norm", "vrex"]}, dataset="digits", target="street", method="erm")


def test_built_in_parts_are_not_local():
    for method in medic.METHODS:
        settings = {"dataset": "digits", "target": "street", "method": method}
        assert resolve(settings).plugins == ()
