"""Hyperparameters: declared by their parts, given by `--hparams`, drawn from search ranges."""

import math
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest

from medic.config.draws import SHARED, draw
from medic.errors import MedicError
from medic.methods import METHODS
from medic.objectives import PENALTIES, Penalty
from medic.runs.build import build_objective
from medic.strategies import SandMask
from medic.utils.parts import Choice, Part, Range, hyperparameter, hyperparameters, log10
from tests import built as builders
from tests.built import built
from tests.messages import naming


def plan_of(**settings):
    """Make a recipe whose averaging has no hyperparameters."""
    return builders.plan_of(**{"averaging": "none", **settings})


def test_defaults_on_a_benchmark_are_those_of_the_part_alone():
    """MIRO's weight on PACS is no weight of another penalty in its place."""
    miro, vrex = Part("miro", PENALTIES["miro"]), Part("vrex", PENALTIES["vrex"])
    assert miro.hyperparameters("pacs") == {"weight": 0.01}
    assert miro.hyperparameters("digits") == miro.hyperparameters() == {"weight": 0.1}
    assert vrex.hyperparameters("pacs") == vrex.hyperparameters() == {"weight": 10, "anneal": 500}


def test_parts_take_their_hyperparameters(mini):
    plan = plan_of(dataset=mini, method="vrex", hparams="weight=3,anneal=7")
    penalty = plan.parts.penalty.build()
    assert (penalty.weight, penalty.anneal, type(penalty.anneal)) == (3.0, 7, int)
    assert plan.config.settings["hparams"] == {"weight": 3.0, "anneal": 7}


def test_strategies_take_theirs(mini):
    plan = plan_of(dataset=mini, method="sandmask", hparams={"tau": 0.25})
    assert plan.parts.strategy.build() == SandMask(tau=0.25)
    assert plan.config.settings["hparams"] == {"tau": 0.25, "k": 10.0}
    assert Part("sandmask", SandMask, {"tau": 0.25}).build(k=1.0) == SandMask(tau=0.25, k=1.0)


def test_a_kept_adam_is_a_hyperparameter(mini):
    plan = plan_of(dataset=mini, method="mvdg", hparams="persist_inner_state=1")
    assert plan.parts.strategy.build().persist_inner_state == 1
    assert plan.config.settings["hparams"] == {"count": 3, "decay": 5e-4, "persist_inner_state": 1}


def test_json_as_domainbed_has_it(mini):
    assert plan_of(dataset=mini, method="vrex", hparams='{"weight": 2}').parts.penalty.build().weight == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "vrex", "hparams": "wieght=3"}, "'wieght' 'weight'"),
        ({"method": "vrex", "hparams": "weight="}, "weight=10"),
        ({"method": "vrex", "hparams": "{weight: 1"}, "weight=10"),
        ({"method": "vrex", "hparams": {"weight": "much"}}, "weight 'much'"),
        ({"method": "vrex", "hparams": {"anneal": 1.5}}, "anneal 1.5"),
        ({"method": "erm", "hparams": "weight=3"}, "'erm'"),
        ({"method": "sandmask", "hparams": "tau=1"}, "tau 1"),
        ({"method": "medic++", "hparams": "tau=1"}, "'medic++'"),
        ({"sampling": "confusable", "hparams": "forgetting=2"}, "forgetting 2"),
        ({"sampling": "confusable", "hparams": "strength=-1"}, "strength -1"),
        ({"sampling": "confusable", "hparams": "lag=0"}, "lag 0"),
        ({"sampling": "random", "hparams": "forgetting=0.5"}, "'reptile'"),
        ({"sampling": "informative", "hparams": "every=0"}, "every 0"),
        ({"sampling": "informative", "hparams": "delta=-1"}, "delta -1"),
        (
            {"method": "ebil-hads", "sampling": "informative", "hparams": "every=2"},
            "every hard-domain informative hard-domain.every",
        ),
        ({"method": "erm", "penalty": "vrex"}, "'vrex' tasks"),
        ({"method": "coral", "sources": ["printed"]}, "'coral' tasks"),
        ({"method": "fishr", "objective": "arpl"}, "'fishr' linear"),
        ({"method": "aloft-e", "backbone": "convnet"}, "'aloft-e' gfnet_h_ti --backbone convnet"),
        ({"method": "mvdg", "sources": ["printed", "handwritten"]}, "'mvdg' 3 2"),
        ({"method": "andmask", "sources": ["printed"]}, "'andmask' 2 1"),
        ({"method": "sandmask", "sources": ["printed"]}, "'sandmask' 2 1"),
        ({"method": "medic++", "penalty": "groupdro"}, "'groupdro'"),
        ({"method": "medic++", "penalty": "blance"}, "'blance' 'balance'"),
    ],
)
def test_mistakes(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(**{"dataset": mini, "method": "reptile", **settings})


def test_a_recipe_has_all_of_them(mini):
    plan = plan_of(dataset=mini, method="vrex", hparams="weight=3")
    assert plan.config.settings["hparams"] == {"weight": 3.0, "anneal": 100}  # of 1,000 iterations
    assert plan_of(**plan.config.settings).config.settings == plan.config.settings


def test_those_of_two_parts_are_distinguished(mini):
    settings = {"dataset": mini, "method": "medic", "penalty": "hgp"}
    plan = plan_of(**settings, hparams="hgp.beta=0.5")
    assert plan.config.settings["hparams"] == {"alpha": 1e-4, "hgp.beta": 0.5, "medic.beta": 1.0, "meta_test": 1}
    assert plan.parts.penalty.build().beta == 0.5
    assert plan.parts.strategy.build().beta == 1.0
    assert plan_of(**plan.config.settings).config.settings == plan.config.settings
    with pytest.raises(MedicError, match=naming("beta hgp medic hgp.beta")):
        plan_of(**settings, hparams="beta=0.5")


def test_samplers_take_theirs(mini):
    settings = {"dataset": mini, "method": "reptile"}
    plan = plan_of(**settings, sampling="confusable", hparams="confusable.forgetting=0.3,strength=2")
    assert plan.config.settings["hparams"] == {"forgetting": 0.3, "strength": 2.0, "lag": 4}
    sampler = plan.parts.sampler.build()
    assert (sampler.forgetting, sampler.strength) == (0.3, 2.0)
    assert plan_of(**plan.config.settings).config.settings == plan.config.settings
    plan = plan_of(**settings, sampling="informative", hparams="delta=0.1,every=7")
    assert plan.config.settings["hparams"] == {"every": 7, "delta": 0.1}
    assert [(callback.values["every"], callback.values["delta"]) for callback in plan.parts.callbacks] == [(7, 0.1)]
    assert plan_of(**plan.config.settings).config.settings == plan.config.settings


@pytest.mark.parametrize(("sampling", "hparams"), [("probe", {"lag": 1}), ("random", None)])
def test_conventions_are_no_hyperparameters(mini, sampling, hparams):
    plan = plan_of(dataset=mini, method="reptile", sampling=sampling)
    assert plan.config.settings["hparams"] == hparams


def test_a_smaller_grid_keeps_the_number_of_steps(mini):
    plan = plan_of(dataset=mini, method="vrex", domain_splits=2)
    assert plan.grid.sizes == (2,)


def test_a_penalty_goes_with_another_method(mini):
    plan = plan_of(dataset=mini, penalty="balance", hparams="weight=2")
    assert plan.config.settings["method"] == "medic++"
    assert [type(part) for part in build_objective(plan).penalties] == [PENALTIES["balance"]]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_search_ranges_are_of_hyperparameters_or_settings(mini, method):
    plan = plan_of(dataset=mini, method=method.name)
    assert set(plan.search) <= {*(plan.config.settings["hparams"] or {}), "lr"}


def test_laws():
    random = np.random.RandomState(0)
    assert all(-1 <= np.log10(Range("a", -1, 5, 10.0).draw(random)) <= 5 for _ in range(50))
    assert {Choice("n", (1, 2)).draw(random) for _ in range(50)} == {1, 2}
    whole = [Range("b", 3, 5.5, 2.0, whole=True).draw(random) for _ in range(50)]
    assert all(isinstance(value, int) and 8 <= value <= 45 for value in whole)


def test_a_draw_of_domainbed():
    """hparams_seed 1, trial_seed 0, large images, as its specification has it."""
    drawn = {name: draw(law, 1, 0) for name, law in SHARED["large"].items()}
    assert drawn["lr"] == pytest.approx(2.702893e-05, abs=5e-12)
    assert drawn["batch_size"] == 39


@dataclass(eq=False)
class Example(Penalty):
    """A penalty that is not registered."""

    weight: float = hyperparameter(2.0, most=9, search=log10("example", -1, 1), on={"pacs": 3.0})
    rounds: int = hyperparameter(4, least=1)
    start: float | None = hyperparameter(None, least=1, run_length=100)
    delay: int = hyperparameter(290, search=log10("delay", 0, 3), run_length=1000)
    label: str = "no hyperparameter"


def test_declared_fields_are_the_hyperparameters():
    assert list(hyperparameters(Example)) == ["weight", "rounds", "start", "delay"]
    part = Part("example", Example)
    assert part.hyperparameters() == {"weight": 2.0, "rounds": 4, "delay": 290}  # one that is off is left out
    assert part.hyperparameters("pacs") == {"weight": 3.0, "rounds": 4, "delay": 290}
    delays = {length: part.hyperparameters(iterations=length)["delay"] for length in (100, 900, 1000, 2000)}
    assert delays == {100: 29, 900: 261, 1000: 290, 2000: 290}
    assert part.changed(weight=5.0).hyperparameters("pacs")["weight"] == 5.0
    assert part.search() == {"weight": log10("example", -1, 1), "delay": log10("delay", 0, 3)}
    assert part.search(100)["delay"].high == pytest.approx(2)
    assert part.build(start=None).start is None


@pytest.mark.parametrize(
    "values", [{"weight": 10}, {"weight": -1}, {"rounds": 0}, {"start": 0.5}, {"weight": math.nan}]
)
def test_declared_limits_are_checked(values):
    ((name, value),) = values.items()
    with pytest.raises(MedicError, match=naming(f"{name} {value}")):
        Example(**values)


def test_a_new_penalty_is_known_by_its_name(mini):
    """It is trained, and its hyperparameters are checked, with nothing but its class."""
    with patch.dict(PENALTIES):

        @dataclass(eq=False)
        class Confident(Penalty, name="confident"):
            strength: float = hyperparameter(0.5, most=4)

            def forward(self, tasks, output, step):
                return self.strength * output.logits.logsumexp(1).mean()

        trainer = built(dataset=mini, method="erm", penalty="confident", hparams="strength=2", batch_size=4)
        assert [(type(part), part.strength) for part in trainer.objective.penalties] == [(Confident, 2.0)]
        assert trainer.step() + trainer.wait()
        with pytest.raises(MedicError, match=naming("strength 5")):
            plan_of(dataset=mini, method="erm", penalty="confident", hparams="strength=5")
