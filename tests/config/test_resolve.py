"""Plans: settings completed, mistakes named before anything starts, and trainers that share no state."""

import copy
import dataclasses

import pytest
import torch

from medic.config.config import Config
from medic.config.files import load_yaml, read_settings, to_yaml
from medic.config.settings import DEFAULTS, GROUPS, SETTINGS, Settings, identity
from medic.errors import MedicError
from medic.methods import METHODS
from medic.results.paper_tables import reproduction
from medic.runs.build import build_objective, build_trainer
from medic.runs.facts import notes as notes_of
from medic.runs.optimizer import rate_factor
from medic.strategies import MultiStep
from medic.systems.base import Method
from medic.tasks import Grid, GridSpec
from medic.utils.parts import Part
from tests.built import loaded, plan_of
from tests.messages import naming


@pytest.mark.parametrize("method", METHODS)
def test_complete_settings_repeat_a_recipe(method):
    """So a run can be repeated from its `config.json` alone."""
    plan = plan_of(method=method)
    assert plan_of(**plan.config.settings).config.settings == plan.config.settings
    assert plan.batch_size * plan.grid.tasks == METHODS[method].preset.get("images", DEFAULTS["images"])


def test_every_setting_has_a_name_of_its_own():
    names = [name for group in GROUPS.values() for name in group.__annotations__]
    assert sorted(names) == sorted(set(names)) == sorted(SETTINGS) == sorted(Settings.__annotations__)


def test_what_does_not_change_the_result_is_no_part_of_the_identity(tmp_path):
    one, other = plan_of(output=str(tmp_path)), plan_of(output="elsewhere", track="none", checkpoint_every=3)
    assert one.config.identity == other.config.identity == identity(one.config.settings)
    assert one.config.identity != plan_of(seed=1).config.identity
    assert not {"output", "device", "root", "weights", "track"} & one.config.identity.keys()


def test_a_recipe_is_frozen():
    plan = plan_of(method="medic++")
    for value in (plan, plan.config.data, plan.config.optim, plan.grid, plan.parts, plan.parts.strategy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


def test_what_was_asked_is_kept_as_it_was():
    settings = {"method": "medic", "iterations": 7, "known": "0,1,2", "lr": None}
    plan = plan_of(**settings)
    assert {name: value for name, value in plan.user_settings.items() if name in settings} == {
        "method": "medic", "iterations": 7, "known": "0,1,2",
    }  # fmt: skip
    assert plan.config.settings["known"] == ["0", "1", "2"]
    assert plan.config.settings["lr"] is not None


@pytest.mark.usefixtures("small_adversaries")
@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_can_be_built_any_number_of_times(mini, method):
    """Two trainers of one recipe share no state: training one leaves the other as it was."""
    settings = {"hparams": {"persist_inner_state": 1}} if method == "mvdg" else {}
    plan, dataset, problem = loaded(dataset=mini, method=method, batch_size=2, **settings)
    first, second = (build_trainer(plan, dataset, problem) for _ in range(2))
    for part in ("model", "grid", "strategy", "objective", "optimizer", "generator"):
        assert getattr(first, part) is not getattr(second, part)
    assert first.grid.generator is not second.grid.generator
    assert first.grid.sampler is not second.grid.sampler
    mine, theirs = (set(map(id, (*t.model.parameters(), *t.objective.parameters()))) for t in (first, second))
    assert not mine & theirs
    before = copy.deepcopy(second.state_dict())
    losses = [first.step() + first.wait() for _ in range(2)]
    after = second.state_dict()
    assert same({**after, "global_generators": None}, {**before, "global_generators": None})
    second.load_state_dict(before)
    assert [second.step() + second.wait() for _ in range(2)] == losses


def same(one, other):
    """Whether two nested states are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_the_methods_of_the_paper():
    plan = plan_of(method="medic++")
    assert plan.grid.sizes == (3, 3, 3)
    assert plan.grid.sampling == "adaptive"
    assert plan.config.settings["objective"] == "ce+ova"
    assert plan.config.settings["score"] == "bcls"
    assert plan.config.settings["head"] == "separate"
    assert plan_of(method="erm").config.settings["score"] == "cls"
    assert plan_of(method="erm").config.settings["inner_lr"] is None


def test_the_grid_follows_the_data():
    one_source = plan_of(method="medic++", sources=["printed"])
    assert one_source.config.settings["steps"] == [1, 1, 1]
    assert one_source.config.settings["batch_size"] == 48
    two = plan_of(method="medic++", sources=["printed", "blended"], known=["0", "1"])
    assert two.config.settings["steps"] == [2, 2]
    assert plan_of(method="medic", sources=["printed"]).config.settings["steps"] == [1, 1]


def test_settings_reach_what_they_are_for():
    plan = plan_of(
        method="medic++", inner_lr=0.5, bn_buffers="restore", optimizer="adam", lr=0.25, steps="5,4", sampling="random",
        objective="ova", warmup=3, schedule="cosine", known=["0,1,2", "3"],
    )  # fmt: skip
    strategy = plan.parts.strategy.build()
    assert (strategy.lr, strategy.bn_buffers) == (0.5, "restore")
    assert (plan.config.optim.optimizer, plan.config.optim.weight_decay, plan.config.optim.momentum) == (
        "adam",
        0.0,
        None,
    )
    assert plan.grid.sizes == (5, 4)
    assert rate_factor(plan.config.optim, 0) == 0.25
    assert plan.config.data.classes.known == ("0", "1", "2", "3")
    assert plan.config.model.head == "shared"


def test_adam_has_rates_of_its_own():
    assert plan_of(optimizer="adam").config.settings["lr"] == 1e-3
    assert plan_of(optimizer="adam", lr=0.5).config.settings["lr"] == 0.5


@pytest.mark.parametrize(("method", "optimizer", "rates"), [
    ("mldg-domainbed", "adam", (1e-3, 0.0, None, 1.0, 1e-3)),
    ("mldg-domainbed", "sgd", (0.06, 5e-4 / 9, 0.9, 1.0, 1e-3)),
    ("mvdg", "sgd", (0.05, 5e-4, 0.0, 10.0, 1e-3)),
    ("mvdg", "adam", (1e-3, 0.0, None, 1.0, 1e-3)),
    ("cirl", "adamw", (1e-3, 0.0, None, 1.0, None)),
    ("medic++", "adam", (1e-3, 0.0, None, 1.0, 0.01)),
])  # fmt: skip
def test_rates_belong_to_a_method_and_its_optimizer(method, optimizer, rates):
    settings = plan_of(method=method, optimizer=optimizer).config.settings
    names = ("lr", "weight_decay", "momentum", "head_lr_scale", "inner_lr")
    assert tuple(settings[name] for name in names) == rates


def test_a_method_keeps_its_preset(monkeypatch):
    grid = GridSpec(3, 3, steps=(5, 4), separate="step", class_groups=4)
    own = Method("own", "", "", "", preset={"lr": 1}, grid=grid, strategy=Part("own", MultiStep, {"lr": 0.5}))
    monkeypatch.setitem(METHODS, "own", own)
    plan = plan_of(method="own")
    assert (plan.config.tasks.steps, plan.config.tasks.separate, plan.config.tasks.class_groups) == ([5, 4], "step", 4)
    assert (plan.config.objective.inner_lr, plan.config.optim.lr) == (0.5, 1.0)
    assert plan_of(method="own", sources=["printed"]).config.tasks.steps == [1, 1, 1]


@pytest.mark.parametrize("preset", [{"augment": "none"}, {"precision": "fp32"}, {"seed": 1}, {"tune": "norm"}])
def test_a_method_cannot_choose_what_belongs_to_the_user(monkeypatch, preset):
    monkeypatch.setitem(METHODS, "own", Method("own", "", "", "", preset=preset))
    with pytest.raises(MedicError, match=naming(f"'{next(iter(preset))}' 'own'")):
        plan_of(method="own")


def test_axes_of_the_methods_own():
    plan = plan_of(method="hyprometa", averaging="none")
    assert plan.grid.splits == {"domain": 2, "clean": 1, "class": 2}
    assert plan.config.settings["axes"] is None
    assert plan.config.settings["hparams"] == {"beta": 1.0, "prompt": 0.1, "reject": 1.0, "meta_test": 1, "trust": 40}


def test_one_name_is_a_list_of_one():
    assert plan_of(sources="printed").config.settings["sources"] == ["printed"]
    assert plan_of(known="0,1,2").config.settings["known"] == ["0", "1", "2"]
    assert plan_of(known=[0, 1, 2]).config.settings["known"] == ["0", "1", "2"]


def test_rates_of_domainbed_follow_the_outer_rate():
    assert plan_of(method="mldg-domainbed").config.settings["inner_lr"] == 1e-3
    assert plan_of(method="mldg-domainbed", lr=1e-4).config.settings["inner_lr"] == 1e-4
    assert plan_of(method="fish-domainbed", lr=0.1).config.settings["inner_lr"] == 1e-3


@pytest.mark.parametrize(("settings", "message"), [
    ({"method": "medik"}, "'medik' 'medic'"),
    ({"dataset": "digit"}, "'digit' 'digits'"),
    ({"target": None}, "target handwritten"),
    ({"target": "stret"}, "'stret' 'street'"),
    ({"sources": ["street", "printed"]}, "target 'street' sources"),
    ({"known": ["0", "ten"]}, "class 'ten'"),
    ({"steps": "3,3"}, "steps 3,3 6 9"),
    ({"steps": 5001}, "5001 steps 9 --iterations"),
    ({"steps": "3;3;3"}, "steps 3;3;3"),
    ({"class_splits": 7}, "class 7 6"),
    ({"domain_splits": 4}, "domain 4 3"),
    ({"lr": 0.0}, "lr 0.0"),
    ({"lr": -1.0}, "lr -1.0"),
    ({"lr": float("nan")}, "lr nan"),
    ({"lr": "fast"}, "lr 'fast'"),
    ({"inner_lr": 0.0}, "inner_lr 0.0"),
    ({"iterations": 0}, "iterations 0"),
    ({"iterations": -5}, "iterations -5"),
    ({"batch_size": 0}, "batch_size 0"),
    ({"seed": -1}, "seed -1"),
    ({"iterations": 2.5}, "iterations 2.5"),
    ({"iterations": True}, "iterations True"),
    ({"weight_decay": -0.1}, "weight_decay -0.1"),
    ({"method": 5}, "method 5"),
    ({"backbone": ["convnet", "resnet18"]}, "backbone convnet sweep"),
    ({"known": [0.5, 1.5]}, "known 0.5"),
    ({"save_features": "no"}, "save_features 'no'"),
    ({"hparams": [1]}, "hparams [1]"),
    ({"partial": {"street": 3.5}}, "partial 3.5"),
    ({"track": "tensorbored"}, "'tensorbored' 'tensorboard'"),
    ({"method": "fish-domainbed", "optimizer": "adam"}, "optimizer 'adam'"),
    ({"holdout": 1.0}, "holdout 1.0"),
    ({"label_noise": 1.5}, "label_noise 1.5"),
    ({"objective": "ovaa"}, "objective 'ovaa'"),
    ({"objective": "ce", "score": "bcls"}, "score 'bcls' one-vs-all"),
    ({"objective": "ova", "head": "separate"}, "head 'separate' objective 'ova'"),
    ({"threshold": "hard"}, "threshold 'hard' score 'bcls'"),
    ({"score": "reject"}, "score 'reject' --objective onering"),
    ({"method": "arpl", "head": "close"}, "head 'close' objective 'arpl' reciprocal"),
    ({"weights": "nowhere.safetensors"}, "weights nowhere.safetensors"),
    ({"method": "erm", "inner_lr": 0.1}, "inner_lr"),
    ({"method": "erm", "bn_buffers": "restore"}, "bn_buffers"),
    ({"bn_buffers": "restor"}, "bn_buffers 'restor' 'restore'"),
    ({"optimizer": "adm"}, "optimizer 'adm' 'adam'"),
    ({"optimizer": "adam", "momentum": 0.9}, "momentum sgd"),
    ({"schedule": "stp"}, "schedule 'stp' 'step'"),
    ({"augment": "digit"}, "'digit'"),
    ({"separate": "tsk"}, "'tsk'"),
    ({"steps": 0}, "0 steps 9"),
    ({"steps": 1.5}, "steps 1.5"),
    ({"steps": True}, "steps True"),
    ({"method": "erm", "sampling": "adaptive"}, "sampling"),
    ({"method": "fish", "class_groups": 3}, "class_groups"),
    ({"method": "medic", "separate": "step"}, "separate 'medic'"),
    ({"objective": "ce", "ova_scale": 1.0}, "ova_scale 'ce'"),
    ({"method": "mldg", "sources": ["printed"]}, "1 meta-training"),
    ({"method": "mldg-domainbed", "sources": ["printed", "blended"]}, "2 meta-training"),
    ({"score": "energy", "threshold": "fixed"}, "'fixed' score 'energy'"),
    ({"axes": "hospital=2"}, "'hospital' --axes"),
    ({"axes": "hospital"}, "axes 'hospital'"),
    ({"method": "hyprometa", "axes": "clean=2"}, "'clean' 'hyprometa'"),
    ({"method": "hyprometa", "hparams": "trust=-1"}, "trust -1"),
    ({"method": "hyprometa", "tune": "head"}, "'hyprometa' backbone"),
    ({"method": "hyprometa", "head": "separate"}, "head 'separate' objective 'hyprometa'"),
    ({"root": "somewhere"}, "'digits' root"),
    ({"dataset": "pacs"}, "'pacs' --root"),
    ({"device": "gpu"}, "device 'gpu'"),
    ({"target": ["street", "none"]}, "target 'none' every domain"),
    ({"backbone": ""}, "unknown backbone ''"),
    ({"method": "daml", "sources": ["printed"]}, "'daml' 2 1"),
    ({"method": "daml", "domain_splits": 2}, "'daml' domain_splits"),
    ({"method": "daml", "class_splits": 2}, "'daml' --class-splits"),
    ({"method": "daml", "steps": "1,2"}, "'daml' steps"),
    ({"method": "groupdro", "objective": "daml"}, "--method daml"),
    ({"method": "daml", "penalty": "hgp"}, "'hgp' networks"),
    ({"images": 48, "batch_size": 2}, "images 48 batch_size 2"),
    ({"images": 0}, "images 0"),
    ({"class_groups": 2}, "--class-groups 3 --class-splits"),
    ({"images": 1}, "images 1 9"),
    ({"momentum": 2.0}, "momentum 2.0"),
    ({"warmup": 2000}, "warmup 2000 1000"),
    ({"method": "coral", "batch_size": 1}, "'coral' 2 1"),
    ({"method": "erm", "penalty": "balance"}, "'balance' one-vs-all --objective"),
    ({"method": "vrex", "class_splits": 2, "sampling": "probe"}, "--method reptile --penalty vrex --steps 1"),
    ({"method": "groupdro", "class_splits": 2, "sampling": "probe"}, "sampling"),
    ({"method": "andmask", "sources": ["printed"]}, "'andmask' maml reptile medic"),
    ({"method": "daml", "hparams": "temperature=0"}, "temperature 0"),
])  # fmt: skip
def test_mistakes(settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(**settings)


def test_a_network_for_every_source_domain():
    assert plan_of(method="daml").networks == 3
    assert plan_of(method="daml", sources=["printed", "blended"]).networks == 2
    assert plan_of(method="daml", objective="ce+ova").networks == 1
    plan = plan_of(method="daml", sampling="balanced", hparams="mixup=2,alpha_own=0.5")
    assert plan.grid.sizes == (3, 3)
    objective = build_objective(plan)
    assert (objective.mixup, objective.alpha_own, objective.alpha_other) == (2.0, 0.5, 0.2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(MedicError, match="GPU"):
        plan_of(device="cuda")


def test_configuration_files_round_trip(tmp_path):
    settings = plan_of(method="medic").config.settings
    (tmp_path / "c.yaml").write_text(to_yaml(settings))
    assert read_settings(tmp_path / "c.yaml") == settings


def test_balanced_sampling_draws_every_cell_alike(mini):
    plan, _, problem = loaded(dataset=mini, method="erm", sampling="balanced", batch_size=36)
    assert (plan.grid.splits, plan.grid.sizes) == ({"domain": 1, "class": 1}, (1,))
    grid = Grid(plan.grid)
    cells = grid.index(problem.train.label, problem.train.domain)
    ((task,),) = grid.draw(cells, 36)
    labels, domains = problem.train.label[task.indices], problem.train.domain[task.indices]
    counts = (domains * 6 + labels).bincount()
    assert set(counts[counts > 0].tolist()) == {2}
    assert len(counts[counts > 0]) == 18


@pytest.mark.parametrize(("method", "size"), [("erm", 45), ("medic++", 5), ("medic", 11)])
def test_images_are_shared_by_the_tasks(method, size):
    """45 over 1, 9 and 4 tasks."""
    tasks = plan_of(method=method, images=45).config.tasks
    assert tasks.batch_size == size


def test_a_part_brings_what_goes_with_it_to_any_method(mini):
    layered = plan_of(dataset="digits", method="medic++", layer="mixstyle")
    assert layered.config.settings["hparams"]["stages"] == 2  # 3 elsewhere
    near = plan_of(dataset=mini, method="erm", penalty="miro", backbone="resnet18")
    assert near.config.model.batch_norm == "frozen"
    away = plan_of(dataset=mini, method="miro", penalty="balance", objective="ce+ova")
    assert away.config.model.batch_norm == "local"  # frozen statistics came with the penalty that was replaced


def test_a_penalty_that_begins_after_the_end_is_said(mini):
    for method, iterations, said in (("fishr", 300, 1), ("vrex", 300, 1), ("vrex", 501, 0)):
        plan = plan_of(dataset=mini, method=method, iterations=iterations, hparams={"anneal": 500})
        assert len([line for line in notes_of(plan) if "anneal" in line]) == said


@pytest.mark.parametrize(
    ("method", "iterations", "anneal"),
    [("vrex", 5000, 500), ("vrex", 300, 30), ("vrex", 15000, 500), ("fishr", 1200, 360), ("fishr", 1, 0)],
)
def test_a_penalty_begins_after_a_share_of_a_short_run(mini, method, iterations, anneal):
    """As late as DomainBed's in its runs of 5,000 iterations, and no later in longer runs."""
    plan = plan_of(dataset=mini, method=method, iterations=iterations)
    assert plan.config.settings["hparams"]["anneal"] == plan.parts.penalty.build().anneal == anneal
    assert not [line for line in notes_of(plan) if "anneal" in line]


def test_names_of_methods_and_datasets_in_any_case():
    settings = plan_of(method="ERM", dataset="Digits").config.settings
    assert (settings["method"], settings["dataset"]) == ("erm", "digits")
    assert settings == plan_of(method="erm", dataset="digits").config.settings


def test_a_large_network_on_a_cpu_is_said(mini):
    cases = (("resnet50", 224, True), ("resnet18", 128, True), ("resnet18", 64, False), ("convnet", 224, False))
    for backbone, size, said in cases:
        plan = plan_of(dataset=mini, method="erm", backbone=backbone, image_size=size, device="cpu")
        notes = [line for line in notes_of(plan) if "slow on a CPU" in line]
        assert len(notes) == said
        assert all(("--backbone resnet18" in line) == (backbone == "resnet50") for line in notes)
    frozen = plan_of(dataset=mini, method="erm", backbone="resnet50", image_size=224, device="cpu", tune="head")
    assert not [line for line in notes_of(frozen) if "slow on a CPU" in line]


def test_a_table_of_the_paper_without_weights_is_said():
    cases = (("pacs-resnet50", {}, 1), ("pacs-resnet50", {"weights": "w"}, 0), ("digitsdg-convnet", {}, 0))
    for name, settings, said in cases:
        table = reproduction(name)
        assert len(list(table.warnings(table.runs(settings=settings)))) == said


@pytest.mark.parametrize("name", ["31e4", "1e-4", "12e4567890123456", "007", "null", "yes", "a: b"])
def test_a_name_that_looks_like_a_number_stays_text(name):
    assert load_yaml(to_yaml({"name": name, "lr": 1e-4})) == {"name": name, "lr": 1e-4}


@pytest.mark.parametrize("name", ["MEDIC++", "medicpp", "MedicPP"])
def test_a_method_is_spelled_in_several_ways(mini, name):
    assert plan_of(dataset=mini, method=name).method.name == "medic++"


def test_a_frozen_run_of_an_earlier_version():
    settings = {**plan_of(dataset="digits", target="street").config.settings, "freeze": "backbone"}
    del settings["tune"]
    assert Config.from_settings(settings).model.tune == "head"
