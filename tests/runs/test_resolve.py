"""Configurations: defaults written out, mistakes named before anything starts."""

import dataclasses

import pytest
import torch

from medic.errors import MedicError
from medic.methods import METHODS, usual_numbers
from medic.runs.train import _notes
from medic.tables.paper_tables import reproduction
from medic.tables.reproduction import Asked
from tests.built import recipe_of
from tests.messages import naming


def resolved(**settings):
    return recipe_of(**settings)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resolves_and_is_stable(method):
    """What resolving wrote out resolves to itself, so a run's own configuration repeats it."""
    recipe = resolved(method=method)
    assert recipe_of(**recipe.settings).settings == recipe.settings
    assert recipe.settings["batch_size"] * recipe.grid.tasks == METHODS[method].training.images


def test_the_methods_of_the_paper():
    recipe = resolved(method="medic++")
    assert recipe.grid.sizes == (3, 3, 3)
    assert recipe.grid.sampling == "adaptive"
    assert recipe.settings["objective"] == "ce+ova"
    assert recipe.settings["score"] == "bcls"
    assert recipe.settings["head"] == "separate"
    assert resolved(method="erm").settings["score"] == "cls"
    assert resolved(method="erm").settings["inner_lr"] is None


def test_runs_do_not_share_state():
    a, b = resolved(method="medic++"), resolved(method="medic++")
    assert a.training.grid is not b.training.grid
    assert a.training.strategy is not b.training.strategy
    assert a.training.grid is not METHODS["medic++"].grid


def test_the_grid_follows_the_data():
    one_source = resolved(method="medic++", sources=["printed"])
    assert one_source.settings["steps"] == [1, 1, 1]
    assert one_source.settings["batch_size"] == 48
    two = resolved(method="medic++", sources=["printed", "blended"], known=["0", "1"])
    assert two.settings["steps"] == [2, 2]
    assert resolved(method="medic", sources=["printed"]).settings["steps"] == [1, 1]


def test_settings_reach_what_they_are_for():
    recipe = resolved(
        method="medic++", inner_lr=0.5, bn_buffers="restore", optimizer="adam", lr=0.25, steps="5,4", sampling="random",
        objective="ova", warmup=3, schedule="cosine", known=["0,1,2", "3"],
    )  # fmt: skip
    assert recipe.training.strategy.lr == 0.5
    assert recipe.training.strategy.bn_buffers == "restore"
    assert recipe.training.optimizer.name == "adam"
    assert recipe.training.optimizer.weight_decay == 0.0
    assert recipe.training.optimizer.momentum is None
    assert recipe.grid.sizes == (5, 4)
    assert recipe.training.schedule.warmup == 3
    assert recipe.data.classes.known == ("0", "1", "2", "3")
    assert recipe.model.head == "shared"


def test_adam_has_rates_of_its_own():
    assert resolved(optimizer="adam").settings["lr"] == 1e-3
    assert resolved(optimizer="adam", lr=0.5).settings["lr"] == 0.5


def test_a_preset_keeps_what_it_says(monkeypatch):
    from medic.methods import Method, Training
    from medic.strategies import MultiStep
    from medic.tasks import Grid

    grid = Grid(3, 3, steps=(5, 4), separate="step", class_groups=4)
    preset = Method("own", "", "", "", grid, MultiStep(lr=0.5), training=Training(lr=1))
    monkeypatch.setitem(METHODS, "own", preset)
    recipe = resolved(method="own").config
    assert (recipe.steps, recipe.separate, recipe.class_groups, recipe.inner_lr, recipe.lr) == (
        [5, 4],
        "step",
        4,
        0.5,
        1.0,
    )
    assert resolved(method="own", sources=["printed"]).settings["steps"] == [1, 1, 1]


def test_axes_of_the_methods_own():
    recipe = resolved(method="hyprometa")
    assert recipe.grid.splits == {"domain": 2, "clean": 1, "class": 2}
    assert recipe.settings["axes"] is None
    assert recipe.settings["hparams"] == {"beta": 1.0, "prompt": 0.1, "reject": 1.0, "meta_test": 1, "trust": 40}


def test_one_name_is_a_list_of_one():
    assert resolved(sources="printed").settings["sources"] == ["printed"]
    assert resolved(known="0,1,2").settings["known"] == ["0", "1", "2"]
    assert resolved(known=[0, 1, 2]).settings["known"] == ["0", "1", "2"]


def test_rates_of_domainbed_follow_the_outer_rate():
    assert resolved(method="mldg-domainbed").settings["inner_lr"] == 1e-3
    assert resolved(method="mldg-domainbed", lr=1e-4).settings["inner_lr"] == 1e-4
    assert resolved(method="fish-domainbed", lr=0.1).settings["inner_lr"] == 1e-3


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
    ({"method": "erm", "inner_lr": 0.1}, "'erm' inner_lr"),
    ({"method": "erm", "bn_buffers": "restore"}, "'erm' bn_buffers"),
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
    ({"axes": "hospital=2"}, "'digits' axes"),
    ({"axes": "hospital"}, "axes 'hospital'"),
    ({"method": "hyprometa", "axes": "clean=2"}, "'clean' 'hyprometa'"),
    ({"method": "hyprometa", "hparams": "trust=-1"}, "trust HyProMeta -1"),
    ({"method": "hyprometa", "freeze": "backbone"}, "'hyprometa' backbone"),
    ({"method": "hyprometa", "head": "separate"}, "head 'separate' objective 'hyprometa'"),
    ({"root": "somewhere"}, "'digits' root"),
    ({"dataset": "pacs"}, "'pacs' --root"),
    ({"device": "gpu"}, "device 'gpu'"),
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
    ({"warmup": 1000}, "warmup 1000 300"),
    ({"method": "coral", "batch_size": 1}, "'coral' 2 1"),
    ({"method": "erm", "penalty": "balance"}, "'balance' one-vs-all 'close'"),
    ({"method": "vrex", "class_splits": 2, "sampling": "probe"}, "--method reptile --penalty vrex --steps 1"),
    ({"method": "groupdro", "class_splits": 2, "sampling": "probe"}, "sampling"),
    ({"method": "andmask", "sources": ["printed"]}, "'andmask' maml reptile medic"),
    ({"method": "daml", "hparams": "temperature=0"}, "temperature DAML 0"),
])  # fmt: skip
def test_mistakes(settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        resolve(dataclasses.replace(RunConfig(target="street"), **settings))


def test_a_network_for_every_source_domain():
    assert resolved(method="daml").model.networks == 3
    assert resolved(method="daml", sources=["printed", "blended"]).model.networks == 2
    assert resolved(method="daml", objective="ce+ova").model.networks == 1
    recipe = resolved(method="daml", sampling="balanced", hparams="mixup=2,alpha_own=0.5")
    assert recipe.grid.sizes == (3, 3)
    assert (recipe.model.objective.mixup, recipe.model.objective.alphas) == (2.0, (0.5, 0.2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(MedicError, match="GPU"):
        resolved(device="cuda")


def test_configuration_files_round_trip(tmp_path):
    config = resolved(method="medic").config
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert RunConfig.from_yaml(tmp_path / "c.yaml") == config


def test_balanced_sampling_draws_every_cell_alike(mini):
    recipe = recipe_of(dataset=mini, method="erm", sampling="balanced", batch_size=36)
    grid = recipe.grid
    assert (grid.splits, grid.sizes) == ({"domain": 1, "class": 1}, (1,))
    problem = recipe.data.split(LOAD)
    cells = grid.index(problem.train.label, problem.train.domain)
    ((task,),) = grid.draw(cells, 36)
    labels, domains = problem.train.label[task.indices], problem.train.domain[task.indices]
    counts = (domains * 6 + labels).bincount()
    assert set(counts[counts > 0].tolist()) == {2}
    assert len(counts[counts > 0]) == 18


@pytest.mark.parametrize(("method", "size"), [("erm", 45), ("medic++", 5), ("medic", 11)])
def test_images_are_shared_by_the_tasks(method, size):
    """45 over 1, 9 and 4 tasks."""
    config = resolved(method=method, images=45).config
    assert (config.batch_size, config.images) == (size, None)


def test_a_part_brings_what_goes_with_it_to_any_method(mini):
    layered = recipe_of(dataset="digits", method="medic++", layer="mixstyle")
    assert layered.settings["hparams"]["stages"] == 2  # 3 elsewhere
    near = recipe_of(dataset=mini, method="erm", penalty="miro", backbone="resnet18")
    assert near.model.batch_norm == "frozen"
    away = recipe_of(dataset=mini, method="miro", penalty="balance", objective="ce+ova")
    assert away.model.batch_norm == "frozen"  # no method has it: that of the run's own stays
    assert usual_numbers("pacs")["miro.weight"] == 0.01


def test_a_penalty_that_begins_after_the_end_is_said(mini):
    for method, iterations, said in (("fishr", 300, 1), ("vrex", 300, 1), ("vrex", 501, 0), ("erm", 1, 0)):
        recipe = recipe_of(dataset=mini, method=method, iterations=iterations)
        assert len([line for line in _notes(recipe) if "anneal" in line]) == said


def test_a_table_of_the_paper_without_weights_is_said():
    cases = (("pacs-resnet50", {}, 1), ("pacs-resnet50", {"weights": "w"}, 0), ("digitsdg-convnet", {}, 0))
    for name, settings, said in cases:
        table = reproduction(name)
        assert len(list(table.advice(table.configs(Asked(settings=settings))))) == said
