"""A model file of another version, or of a stranger, is refused in one line, and nothing large is allocated."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
import time
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

import medic
from medic.deploy import model_file
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.errors import MedicError
from medic.models import assemble, create_backbone
from medic.openset import get_score
from tests.messages import naming


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the two files."""
    for name in (DESCRIPTION, WEIGHTS):
        shutil.copy(trained.path / name, tmp_path)
    return tmp_path


def change(folder, **values):
    """Change the description as a person may, without its checksum; a key `a__b` is `b` in `a`."""
    path = folder / DESCRIPTION
    described = json.loads(path.read_text())
    described.pop("checksum", None)
    for key, value in values.items():
        *outer, last = key.split("__")
        place = described
        for name in outer:
            place = place[name]
        place[last] = value
    path.write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 4}, "format 4 upgrade"),
        ({"format": 1}, "format 1 older retrain"),
        ({"format": "2"}, "format '2'"),
        ({"format": 2.0}, "format 2.0"),
        ({"classes": ["cat", "unknown"]}, "class 'unknown' rename"),
        ({"classes": ["cat", "\x1b]0;title\x07dog"]}, "control characters '\\x1b]0;title\\x07dog'"),
        ({"classes": ["cat", "dog\n"]}, "control characters 'dog\\n'"),
        ({"classes": ["cat", "dog\x9b2J"]}, "control characters"),
        ({"classes": ["cat", "dog\u2028"]}, "control characters"),
        ({"threshold__rule": "\x1b[2J"}, "rule '\\x1b[2J'"),
        ({"threshold__rule": None}, "rule None"),
        ({"threshold__value": "0.5"}, "'0.5' number"),
        ({"threshold__value": True}, "number True"),
        ({"threshold__probability": "0.5"}, "'0.5' number"),
        ({"model__networks": True}, "networks True"),
        ({"model__networks": 1.0}, "networks 1.0"),
        ({"preprocessing__size": True}, "preprocessing"),
        ({"preprocessing__mean": [True] * 3}, "number True"),
        ({"classes": []}, "classes"),
        ({"classes": ["cat", 3]}, "classes"),
        ({"classes": "cat"}, "classes"),
        ({"classes": ["cat", "dog", "owl"]}, "weights do not match"),
        ({"classes": [str(k) for k in range(10**6)]}, "weights do not match"),
        ({"model__backbone": "convnett"}, "unknown backbone"),
        ({"model__backbone": "../../etc/passwd"}, "unknown backbone"),
        ({"model__backbone": "resnet152"}, "weights do not match"),
        ({"model__head": "closed"}, "head"),
        ({"model__networks": 10**9}, "networks"),
        ({"model__networks": 0}, "networks"),
        ({"preprocessing__size": 10**6}, "preprocessing"),
        ({"preprocessing__decoded": -1}, "preprocessing"),
        ({"preprocessing__std": [0, 0, 0]}, "preprocessing"),
        ({"preprocessing__mean": ["a", 0, 0]}, "'a' number"),
        ({"preprocessing__mean": [0.5], "preprocessing__std": [0.5]}, "preprocessing"),
        ({"preprocessing__resampling": "nearest"}, "nearest"),
        ({"score__name": "__import__('os')"}, "unknown score"),
        ({"score__name": "knn"}, "cannot load"),
        ({"threshold__value": float("nan")}, "threshold"),
        ({"threshold": 3}, "cannot load"),
        ({"views": 10**9}, "views"),
        ({"sha256": "0"}, WEIGHTS),
        ({"classes": ["cat", "cat"]}, "duplicate name"),
        ({"model__backbone": "x" * 10**6}, "unknown backbone"),
        ({"threshold__probability": 0.999}, "threshold 0.999"),
        ({"threshold__probability": float("nan")}, "threshold nan"),
        ({"views": 1001}, "views"),
        ({"views": 1.9}, "1.9 views"),
        ({"views": True}, "True views"),
        ({"views": "2"}, "'2' views"),
    ],
)
def test_a_description_that_cannot_be_used(folder, values, message):
    change(folder, **values)
    with pytest.raises(MedicError, match=naming(message)) as caught:
        medic.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"cat"', '"cow"'), ("0.5", "0.25"), ('"views": 1', '"views": 2'), ('"source"', '"fixed"'), ("medic++", "erm")],
)
def test_an_edited_description_is_noticed(folder, old, new):
    path = folder / DESCRIPTION
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MedicError, match=naming(f"{path} checksum mismatch remove 'checksum'")):
        medic.load(folder)


def test_a_description_may_be_edited_without_its_checksum(folder):
    """Models of version 0.3 have none either."""
    change(folder, classes=["cow", "dog"])
    assert medic.load(folder).classes == ("cow", "dog")


def test_the_layout_of_a_description_does_not_count(folder):
    path = folder / DESCRIPTION
    described = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(described.items())), indent=7))
    assert medic.load(folder).classes == ("cat", "dog")


def test_an_entry_that_comes_twice(folder):
    path = folder / DESCRIPTION
    described = json.loads(path.read_text())
    inner = json.dumps(described["threshold"])[1:]
    path.write_text(json.dumps(described).replace(inner, f'"value": -100.0, {inner}'))
    with pytest.raises(MedicError, match=naming("duplicate 'value'")):
        medic.load(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "{}", '{"format": 2}', "[" * 10**5, "\x00" * 100])
def test_what_is_not_a_description(folder, text):
    (folder / DESCRIPTION).write_text(text)
    with pytest.raises(MedicError, match=str(folder)):
        medic.load(folder)


@pytest.mark.slow
def test_a_large_network_is_not_made_for_a_small_file(folder):
    change(folder, model__backbone="vit_giant_patch14_224", preprocessing__size=224)  # 4 GB of weights
    tracemalloc.start()
    with pytest.raises(MedicError, match=naming("weights do not match")):
        medic.load(folder)
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()


@pytest.mark.parametrize("size", [512, pytest.param(4096, marks=pytest.mark.slow)])
def test_a_hundred_networks_are_not_made_for_the_weights_of_one(folder, size, monkeypatch):
    """100 networks would take minutes, and so would one for images of 4096 pixels: its names are compared before."""
    made = []

    def create(name, size, pool):
        made.append(size)
        return create_backbone(name, size=size, pool=pool)

    monkeypatch.setattr("medic.deploy.model_file.create_backbone", create)
    change(folder, model__backbone="maxvit_xlarge_tf_512", model__networks=100, preprocessing__size=size)
    with pytest.raises(MedicError, match=naming("cannot load network")):
        medic.load(folder)
    assert made == [512]


def test_names_alone_do_not_make_a_network_for_large_images(folder, monkeypatch):
    """A file of 100 kB can have all names of a network, and no weights."""
    made = []

    def counted(described, size, networks=1, make=model_file._make_network):
        made.append(size)
        return make(described, size, networks)

    change(folder, model__backbone="vit_tiny_patch16_224", preprocessing__size=2048)
    with torch.device("meta"):
        names = model_file._make_network(json.loads((folder / "model.json").read_text()), 224).state_dict()
    save_file({name: torch.empty(0) for name in names}, folder / "model.safetensors")
    monkeypatch.setattr(model_file, "_make_network", counted)
    with pytest.raises(MedicError, match="the weights do not match the network: most shapes differ"):
        medic.load(folder)
    assert made == [224]


def test_an_entry_that_comes_twice_is_found_in_one_pass(folder):
    entries = ",".join(f'"{number}": 0' for number in range(100_000))
    (folder / "model.json").write_text(f'{{{entries}, "99999": 0}}')
    began = time.process_time()
    with pytest.raises(MedicError, match="duplicate entry '99999'"):
        medic.load(folder)
    assert time.process_time() - began < 2


@pytest.fixture
def pair(trained, tmp_path):
    """The folder of an ensemble of two networks, and its predictor."""
    network = assemble([create_backbone("convnet", size=32) for _ in range(2)], 2, "close").eval()
    described = {**trained.predictor.description, "model": {"backbone": "convnet", "head": "close", "networks": 2}}
    plain = dataclasses.replace(trained.predictor, network=network, score=get_score("cls"), description=described)
    plain.save(tmp_path / "pair")
    return tmp_path / "pair", plain


def test_an_ensemble_is_read_back(pair, images):
    folder, predictor = pair
    assert medic.load(folder).predict(images / "z" / "cat" / "0.png") == predictor.predict(images / "z/cat/0.png")


@pytest.mark.parametrize("networks", [1, 3, 100])
def test_an_ensemble_of_another_number(pair, networks):
    folder, _ = pair
    change(folder, model__networks=networks)
    with pytest.raises(MedicError, match=naming("weights do not match")):
        medic.load(folder)


def sealed(folder, tensors):
    """Write weights with the right checksum."""
    save_file(tensors, folder / WEIGHTS)
    change(folder, sha256=hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest())


def write_zeros(path, shapes):
    """Write weights of zeros that take no room on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    os.truncate(path, 8 + len(content) + end)


def test_a_network_that_computes_large_tables_is_not_made(folder):
    """BEiT for images of 4096 pixels has few weights, and an index of 2³² pairs of patches."""
    with torch.device("meta"):
        network = assemble([create_backbone("beit_base_patch16_224", size=2048)], 2, "separate")
    assert sum(buffer.nbytes for buffer in network.buffers()) > 2**30
    change(folder, model__backbone="beit_base_patch16_224", preprocessing__size=2048)
    with torch.device("meta"):
        native = assemble([create_backbone("beit_base_patch16_224", size=224)], 2, "separate")
    shapes = {name: tensor.shape for name, tensor in native.state_dict().items()}
    write_zeros(folder / WEIGHTS, shapes)  # names and most shapes are compared before
    with pytest.raises(MedicError, match=naming("tables MiB")):
        medic.load(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preprocessing__size": 48}, "32x32"),
        ({"preprocessing__mean": [1e308] * 3}, "failed images"),
        ({"preprocessing__mean": [3e38] * 3}, "NaN"),
    ],
)
def test_a_network_that_fails_on_images(folder, images, values, message):
    change(folder, **values)
    with pytest.raises(MedicError, match=naming(message)) as caught:
        medic.load(folder).predict(images / "z" / "cat" / "0.png")
    assert "\n" not in str(caught.value)


def test_weights_that_are_nan_decide_nothing(folder, images):
    tensors = load_file(folder / WEIGHTS)
    sealed(folder, {**tensors, "backbone.conv1.weight": tensors["backbone.conv1.weight"] * float("nan")})
    with pytest.raises(MedicError, match=naming("NaN weights")):
        medic.load(folder).predict(images / "z" / "cat" / "0.png")


def test_tensors_of_a_score_that_has_none(folder):
    sealed(folder, {**load_file(folder / WEIGHTS), "score/x": torch.zeros(3)})
    with pytest.raises(MedicError, match=naming("tensors score")):
        medic.load(folder)


def test_large_images_make_small_batches(folder):
    predictor = medic.load(folder)
    assert predictor.most(64) == 64
    assert dataclasses.replace(predictor, decoded=4096).most(64) == 1
    assert dataclasses.replace(predictor, decoded=1024).most(64) == 16
    resized = dataclasses.replace(predictor.preprocessing, size=2048)  # decoded small, then enlarged for the network
    assert dataclasses.replace(predictor, preprocessing=resized).most(64) == 4


def test_other_weights_of_the_same_network_are_refused(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS)
    with pytest.raises(MedicError, match=naming(WEIGHTS)):
        medic.load(folder)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MedicError, match=naming(f"{tmp_path} {DESCRIPTION}")):
        medic.load(tmp_path)
