"""A method's own numbers, and where they are searched for."""

import inspect

import numpy as np
import pytest

from medic.errors import MedicError
from medic.fields import Choice, Range
from medic.methods import METHODS, Numbers
from medic.objectives.objective import PENALTIES
from medic.objectives.penalties.miro import Miro
from medic.objectives.penalties.vrex import VRex
from medic.runs.draws import SHARED
from medic.strategies import SandMask, TwoStep
from tests.built import recipe_of
from tests.messages import naming


def test_numbers_of_a_benchmark_are_those_of_the_part_alone():
    """MIRO's weight on PACS is no weight of another penalty in its place."""
    numbers = Numbers(None, METHODS["miro"].numbers["pacs"])
    assert (numbers.make("miro", Miro).weight, numbers.make("vrex", VRex).weight) == (0.01, 10)


def test_parts_take_their_numbers():
    numbers = Numbers("weight=3,anneal=7")
    penalty = numbers.make("vrex", VRex)
    assert (penalty.weight, penalty.anneal, type(penalty.anneal)) == (3.0, 7, int)
    assert numbers.used == {"weight": 3.0, "anneal": 7}


def test_strategies_take_theirs():
    numbers = Numbers({"tau": 0.25})
    assert numbers.changed("sandmask", SandMask()) == SandMask(tau=0.25)
    assert numbers.used == {"tau": 0.25, "k": 10.0}
    assert Numbers(None).changed("medic", TwoStep(second_order=True)) == TwoStep(second_order=True)


def test_a_kept_adam_is_a_number(mini):
    recipe = recipe_of(dataset=mini, method="mvdg", hparams="persist_inner_state=1")
    assert recipe.training.strategy.persist_inner_state == 1
    assert recipe.settings["hparams"] == {"count": 3, "decay": 5e-4, "persist_inner_state": 1}


def test_json_as_domainbed_has_it():
    assert Numbers('{"weight": 2}').make("vrex", VRex).weight == 2.0


@pytest.mark.parametrize(
    ("method", "hparams", "message"),
    [
        ("vrex", "wieght=3", "'wieght' 'weight'"),
        ("vrex", "weight=", "weight=10"),
        ("vrex", "{weight: 1", "weight=10"),
        ("vrex", {"weight": "much"}, "weight 'much'"),
        ("vrex", {"anneal": 1.5}, "anneal 1.5"),
        ("erm", "weight=3", "'erm'"),
        ("sandmask", "tau=1", "tau SAND-mask 1"),
        ("medic++", "tau=1", "'medic++'"),
    ],
)
def test_numbers_are_refused(mini, method, hparams, message):
    with pytest.raises(MedicError, match=naming(message)):
        recipe_of(dataset=mini, method=method, hparams=hparams)


def test_a_run_writes_all_its_numbers_down(mini):
    recipe = recipe_of(dataset=mini, method="vrex", hparams="weight=3")
    assert recipe.settings["hparams"] == {"weight": 3.0, "anneal": 500}
    assert recipe_of(**recipe.settings).settings == recipe.settings


def test_numbers_of_two_parts_are_told_apart(mini):
    settings = {"dataset": mini, "target": "street", "method": "medic", "penalty": "hgp"}
    recipe = recipe_of(**settings, hparams="hgp.beta=0.5")
    assert recipe.settings["hparams"] == {"alpha": 1e-4, "hgp.beta": 0.5, "medic.beta": 1.0, "meta_test": 1}
    assert recipe.model.objective.penalties[0].beta == 0.5
    assert recipe.training.strategy.beta == 1.0
    assert recipe_of(**recipe.settings).settings == recipe.settings
    with pytest.raises(MedicError, match=naming("'beta' hgp medic hgp.beta")):
        recipe_of(**settings, hparams="beta=0.5")


def test_samplers_take_theirs(mini):
    settings = {"dataset": mini, "target": "street", "method": "reptile"}
    recipe = recipe_of(**settings, sampling="confusable", hparams="confusable.forgetting=0.3,strength=2")
    assert recipe.settings["hparams"] == {"forgetting": 0.3, "strength": 2.0}
    assert (recipe.grid.sampler.forgetting, recipe.grid.sampler.strength) == (0.3, 2.0)
    assert recipe_of(**recipe.settings).settings == recipe.settings
    recipe = recipe_of(**settings, sampling="informative", hparams="delta=0.1,every=7")
    assert recipe.settings["hparams"] == {"every": 7, "delta": 0.1}
    assert [(advisor.every, advisor.delta) for advisor in recipe.training.advisors] == [(7, 0.1)]
    assert recipe_of(**recipe.settings).settings == recipe.settings


@pytest.mark.parametrize("sampling", ["adaptive", "confusable-chain", "probe", "random"])
def test_conventions_are_no_numbers(mini, sampling):
    recipe = recipe_of(dataset=mini, method="reptile", sampling=sampling)
    assert recipe.settings["hparams"] is None


@pytest.mark.parametrize(("settings", "message"), [
    ({"sampling": "confusable", "hparams": "forgetting=2"}, "forgetting 'confusable' 2"),
    ({"sampling": "confusable", "hparams": "strength=-1"}, "strength 'confusable' -1"),
    ({"sampling": "confusable", "hparams": "lag=1"}, "'lag' 'reptile'"),
    ({"sampling": "random", "hparams": "forgetting=0.5"}, "'reptile'"),
    ({"sampling": "informative", "hparams": "every=0"}, "every 'informative' 0"),
    ({"sampling": "informative", "hparams": "delta=-1"}, "delta 'informative' -1"),
    (
        {"method": "ebil-hads", "sampling": "informative", "hparams": "every=2"},
        "'every' hard-domain informative hard-domain.every",
    ),
])  # fmt: skip
def test_numbers_of_samplers_are_refused(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        recipe_of(**{"dataset": mini, "target": "street", "method": "reptile", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "erm", "penalty": "vrex"}, "'vrex' tasks"),
        ({"method": "coral", "sources": ["printed"]}, "'coral' tasks"),
        ({"method": "fishr", "objective": "arpl"}, "'fishr' linear"),
        (
            {"method": "aloft-e", "backbone": "convnet"},
            "'aloft-e' gfnet_h_ti --backbone convnet",
        ),
        ({"method": "mvdg", "sources": ["printed", "handwritten"]}, "'mvdg' 3 2"),
        ({"method": "andmask", "sources": ["printed"]}, "'andmask' 2 1"),
        ({"method": "sandmask", "sources": ["printed"]}, "'sandmask' 2 1"),
    ],
)
def test_what_cannot_work_is_said_before(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        recipe_of(**{"dataset": mini, "target": "street", **settings})


def test_a_smaller_grid_keeps_the_number_of_steps(mini):
    recipe = recipe_of(dataset=mini, method="vrex", domain_splits=2)
    assert recipe.grid.sizes == (2,)


def test_a_penalty_goes_with_another_method(mini):
    recipe = recipe_of(dataset=mini, penalty="balance", hparams="weight=2")
    assert recipe.settings["method"] == "medic++"
    assert [type(part) for part in recipe.model.objective.penalties] == [PENALTIES["balance"]]
    with pytest.raises(MedicError, match=naming("'groupdro'")):
        recipe_of(dataset=mini, penalty="groupdro")
    with pytest.raises(MedicError, match=naming("'blance' 'balance'")):
        recipe_of(dataset=mini, penalty="blance")


def test_searches_are_for_numbers_that_there_are(mini):
    """Every name in a method's search is one of its numbers, or of its training."""
    for method in METHODS.values():
        own = recipe_of(dataset=mini, method=method.name).settings["hparams"] or {}
        assert set(method.search) <= {*own, "lr"}, method.name


def test_laws():
    random = np.random.RandomState(0)
    assert all(-1 <= np.log10(Range("a", -1, 5, 10.0).draw(random)) <= 5 for _ in range(50))
    assert {Choice("n", (1, 2)).draw(random) for _ in range(50)} == {1, 2}
    whole = [Range("b", 3, 5.5, 2.0, whole=True).draw(random) for _ in range(50)]
    assert all(isinstance(value, int) and 8 <= value <= 45 for value in whole)


def test_a_draw_of_domainbed():
    """hparams_seed 1, trial_seed 0, large images, as its specification has it."""
    import hashlib

    def seed_hash(*arguments):
        return int(hashlib.md5(str(arguments).encode()).hexdigest(), 16) % 2**31

    seed = seed_hash(1, 0)
    drawn = {name: law.draw(np.random.RandomState(seed_hash(seed, law.name))) for name, law in SHARED["large"].items()}
    assert drawn["lr"] == pytest.approx(2.702893e-05, abs=5e-12)
    assert drawn["batch_size"] == 39


def test_every_penalty_has_defaults():
    for make in PENALTIES.values():
        assert all(
            parameter.default is not inspect.Parameter.empty
            for parameter in inspect.signature(make).parameters.values()
        )
