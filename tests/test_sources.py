"""Networks and datasets of one's own: functions by name, and objects."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import medic
from medic.config import sources
from medic.config.sources import is_source
from medic.data.collection import make_collection
from medic.errors import MedicError
from tests.messages import naming
from tests.plugins import forgotten

QUICK = {
    "target": "place2",
    "unknown": ["5"],
    "iterations": 4,
    "device": "cpu",
    "quiet": True,
    "method": "erm",
    "images": 24,
}
CODE = """
import numpy as np
from torch import nn


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def tied():
    again = nn.Conv2d(8, 8, 1)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), again, nn.ReLU(), again, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Strict(nn.Flatten):
    def forward(self, x):
        assert x.shape[-1] == 20, "only images of 20 px"
        return super().forward(x)


def pretrained():
    made = network()
    made.load_state_dict({name: tensor + 1 for name, tensor in network().state_dict().items()})
    return made


def images():
    label, domain = np.tile(np.arange(6), 30), np.repeat(np.arange(3), 60)
    pixels = np.random.default_rng(0).random((180, 20, 20, 3)) * 100 + 25 * label[:, None, None, None]
    return pixels.astype(np.uint8), label, [f"place{number}" for number in domain]


number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Import a module of a user, with a network and a dataset, and forget all of it afterwards."""
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with forgotten():
        import mine

        yield mine
    del sys.modules["mine"]


def test_functions_are_recorded_by_name_and_hash(mine):
    run = medic.train(model=mine.network, dataset=mine.images, **QUICK)
    assert (run.config.model.backbone, run.config.data.dataset) == ("mine:network", "mine:images")
    assert [plugin.name for plugin in run.plugins] == ["mine"]
    assert isinstance(run.model.backbone[0], nn.Conv2d)
    again = medic.train(backbone="mine:network", dataset="mine:images", **QUICK)
    assert again.path == run.path
    assert again.written == run.written  # finished, so it was not trained again


def test_a_run_of_functions_resumes(mine, monkeypatch):
    from medic.runs import train as loop

    settings = {"model": mine.network, "dataset": mine.images, "evaluate_every": 2, **QUICK}
    whole = medic.train(output="whole", **settings)
    save = loop.Session._save

    def stop(session):
        save(session)
        if session.trainer.iteration == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Session, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            medic.train(output="half", **settings)
    half = medic.train(output="half", **settings)
    assert all(map(torch.equal, whole.model.state_dict().values(), half.model.state_dict().values()))


def test_a_network_that_uses_a_layer_twice(mine):
    """The file of the model has the weights under both names."""
    run = medic.train(model=mine.tied, dataset=mine.images, **QUICK)
    again = run.model.backbone
    assert torch.equal(again[1].weight, again[3].weight)
    assert medic.export(run, "model.pt2", images=mine.images()[0][:3], format="torch-export").images == 3


def test_a_run_of_objects_trains_once(mine, monkeypatch):
    from medic.runs import train as loop

    network, images = mine.network(), mine.images()
    run = medic.train(model=network, dataset=images, **QUICK)
    assert run.config.model.backbone.startswith("live:Sequential-")
    assert run.predictor.predict(images[0][:3])[0].label in [*"01234", "unknown"]
    assert medic.train(model=network, dataset=images, **QUICK).path != run.path  # it may have changed
    with monkeypatch.context() as patch:
        patch.setattr(loop.Session, "_iterate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            medic.train(model=network, dataset=images, output="stopped", **QUICK)
    (path,) = Path("stopped").iterdir()
    settings = json.loads((path / "settings.json").read_text())
    with pytest.raises(MedicError, match="cannot be resumed"):
        medic.train(**settings)
    with pytest.raises(MedicError, match="sweep"):
        medic.sweep({"seed": [0]}, model=network, dataset=images, **QUICK)


def test_code_of_a_run_is_not_executed_unless_it_is_named(mine, capsys):
    with forgotten():  # as in another process
        run = medic.train(model=mine.network, dataset=mine.images, **QUICK)
        objects = medic.train(model=mine.network(), dataset=mine.images(), **QUICK)
    with pytest.raises(MedicError, match=naming("mine:network --import mine")):
        medic.load(run.path)
    with pytest.raises(MedicError, match=naming("model=")):
        medic.load(objects.path)
    with forgotten():
        for path in (run.path, objects.path):
            assert medic.load(path, model=mine.network).classes == tuple("01234")
    from medic.cli import main

    assert main(["evaluate", str(run.path), "--rerun"]) == 2
    assert "--import mine" in capsys.readouterr().err
    assert main(["evaluate", str(run.path), "--rerun", "--import", "mine"]) == 0


def test_a_model_takes_only_the_network_that_it_lacks(mine):
    run = medic.train(dataset=mine.images, **QUICK)
    with pytest.raises(MedicError, match="omit model="):
        medic.load(run.path, model=mine.network)
    own = medic.train(model=mine.network, dataset=mine.images, **QUICK)
    with pytest.raises(MedicError, match="cannot load the model"):
        medic.load(own.path, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)))
    assert medic.load(own.path).classes == own.predictor.classes  # as before


def test_a_run_of_functions_is_extended(mine):
    options = {**QUICK, "dataset": mine.images, "checkpoint_every": 2}
    base = medic.train(model=mine.network, **options)
    more = medic.train(extend=base.path, iterations=6, quiet=True, device="cpu")
    assert more.config.optim.iterations == 6
    with forgotten():
        from medic.cli import main

        words = ["train", "--extend", str(base.path), "--iterations", "8", "--import", "mine"]
        assert main(words) in (0, 1)


def test_code_that_changed_is_noticed(mine, tmp_path):
    medic.train(model=mine.network, dataset=mine.images, **QUICK)
    (tmp_path / "mine.py").write_text(CODE + "changed = True")
    with pytest.raises(MedicError, match="has changed since"):
        medic.train(model=mine.network, dataset=mine.images, seed=1, **QUICK)


def test_methods_of_a_script_do_not_reach_other_processes(mine):
    with forgotten():
        medic.METHODS["mine"] = medic.Method("mine", "a", "b", "c")
        with pytest.raises(MedicError, match=naming("'mine' imports= executor='here'")):
            medic.sweep({"seed": [0]}, method="mine", dataset="digits", target="street")


def test_a_function_of_the_command_line(mine):
    from medic.cli import main

    options = "--target place2 --unknown 5 --iterations 4 --method erm --device cpu --name named".split()
    main(["train", "--backbone", "mine:network", "--dataset", "mine:images", *options])
    assert medic.Run("runs/named").config.model.backbone == "mine:network"


class Photos(Dataset):
    """Items as a dataset of torch returns them."""

    classes = ("cat", "dog")
    domains = ("day", "night")

    def __len__(self):
        return 8

    def __getitem__(self, position):
        return Image.new("RGB", (40, 30), (position * 10, 0, 0)), torch.tensor(position % 2), position // 4


def test_datasets_of_torch():
    collection = make_collection("photos", Photos())
    assert (collection.classes, collection.domains) == (("cat", "dog"), ("day", "night"))
    dataset = collection.load(medic.data.Storage(16, "auto", torch.device("cpu"), "error"))
    assert dataset.images.shape == (8, 3, 16, 16)
    assert dataset.frames.tolist() == [[30, 40]] * 8
    assert dataset.label.tolist() == [0, 1] * 4
    assert dataset.domain.tolist() == [0] * 4 + [1] * 4


def test_numbers_sort_by_value():
    collection = make_collection("numbers", (np.zeros((3, 8, 8, 3), np.uint8), [10, 9, 2], ["b", "a", "a"]))
    assert (collection.classes, collection.domains) == (("2", "9", "10"), ("a", "b"))


@pytest.mark.parametrize(("source", "message"), [
    (([1], [2, 3], [4]), "1 images, 2 classes and 1 domains"),
    ([], "empty at least one image"),
    (3, "int"),
    ([(1, 2)], "item tuple 2"),
    ({"a": 1}, "dict sequence"),
])  # fmt: skip
def test_datasets_that_are_none(source, message):
    with pytest.raises(MedicError, match=naming(message)):
        make_collection("wrong", source)


@pytest.mark.parametrize(("model", "message"), [
    (lambda: 3, "int torch.nn.Module"),
    (lambda: 1 / 0, "could not create ZeroDivisionError"),
    ("resnet18", "backbone='resnet18'"),
    (nn.Conv2d(3, 8, 3), "features head"),
    (nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), "image-size"),
])  # fmt: skip
def test_networks_that_are_none(mine, model, message):
    with pytest.raises(MedicError, match=naming(message)):
        medic.train(model=model, dataset=mine.images, **QUICK)


@pytest.mark.parametrize(("name", "message"), [
    ("mine:nothing", "no function"),
    ("nowhere:make", "cannot be imported"),
    ("mine:number", "int function"),
])  # fmt: skip
def test_names_that_are_none(mine, name, message):
    with pytest.raises(MedicError, match=naming(message)):
        medic.train(backbone=name, dataset=mine.images, **QUICK)


def test_which_names_are_sources():
    assert all(map(is_source, ("mine:make", "a.b:make", "live:Net-0a1b")))
    assert not any(map(is_source, ("resnet18", "hf-hub:timm/resnet", "C:\\x", None, "a:b:c")))


def test_objects_do_not_train_in_several_processes(mine, monkeypatch):
    """Every process would have an object, and weights, of its own."""
    monkeypatch.setattr(sources.distributed, "world", lambda: 2)
    with pytest.raises(MedicError, match="may differ between processes: pass a function from a module"):
        medic.train(model=mine.network(), dataset=mine.images, **QUICK)


def test_an_assertion_of_a_network_is_one_line(mine):
    with pytest.raises(MedicError, match=naming("Strict 32 only images of 20 px --image-size")):
        medic.train(model=mine.Strict, dataset=mine.images, image_size=32, **QUICK)


@pytest.mark.filterwarnings("error")
def test_a_network_that_loads_its_weights_is_read_back_without_warnings(mine):
    run = medic.train(model=mine.pretrained, dataset=mine.images, **QUICK)
    assert medic.load(run.path).predict(mine.images()[0][:2])
