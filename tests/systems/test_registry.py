"""Heads, objectives and systems register themselves: a new one needs its class, or its file, and nothing else."""

import dataclasses
import pkgutil
from importlib import import_module
from unittest.mock import patch

import pytest

from medic import systems
from medic.methods import METHODS
from medic.models import HEADS
from medic.models.heads import CloseSet
from medic.objectives import CE, OBJECTIVES, PENALTIES, ObjectiveKind
from medic.openset import SCORES
from medic.systems import SYSTEMS
from medic.utils.modules import DeclaredModule
from medic.utils.parts import hyperparameters
from tests.built import built

FILES = [module.name for module in pkgutil.iter_modules(systems.__path__) if module.name != "base"]


@pytest.mark.parametrize("name", FILES)
def test_the_methods_of_a_file_are_in_the_table(name):
    own = import_module(f"medic.systems.{name}").METHODS
    assert own
    for method in own:
        assert method in SYSTEMS
        assert METHODS[method.name] is method


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_names_heads_and_a_score_that_exist(name):
    kind = OBJECTIVES[name]
    assert kind.heads
    assert set(kind.heads) <= set(HEADS)
    assert kind.score in SCORES


def test_methods_name_parts_that_exist():
    for method in METHODS.values():
        assert method.preset.get("objective", "ce") in OBJECTIVES
        assert method.preset.get("penalty") in (None, *PENALTIES)


def test_a_new_head_and_objective_are_trained_by_their_names(mini):
    scaled = ObjectiveKind((CE,), ("scaled",), "cls")
    with patch.dict(HEADS), patch.dict(OBJECTIVES, {"ce-scaled": scaled}):

        class Scaled(CloseSet, name="scaled"):
            """Logits of half the size."""

            def forward(self, features):
                output = super().forward(features)
                return output._replace(logits=output.logits / 2)

        trainer = built(dataset=mini, method="erm", objective="ce-scaled", batch_size=4)
        assert isinstance(trainer.model.head, Scaled)
        assert trainer.step() + trainer.wait()


def declared(kind=DeclaredModule):
    """Return all classes of modules with declared fields."""
    return [one for own in kind.__subclasses__() for one in (own, *declared(own))]


@pytest.mark.parametrize("kind", [kind for kind in declared() if dataclasses.is_dataclass(kind)])
def test_no_default_hides_a_module(kind):
    """A module that is assigned to a field is found only if the class has no attribute of that name."""
    for field in dataclasses.fields(kind):
        value = getattr(kind, field.name, dataclasses.MISSING)
        plain = field.name in hyperparameters(kind) or isinstance(value, str | tuple)
        assert plain or value is dataclasses.MISSING, field.name
