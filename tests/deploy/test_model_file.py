"""A model file of another version, or of a stranger, is refused in one line, and nothing large is allocated."""

import json
import shutil
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

import medic
from medic.deploy import DESCRIPTION, WEIGHTS
from medic.errors import MedicError
from tests.messages import naming


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the two files."""
    for name in (DESCRIPTION, WEIGHTS):
        shutil.copy(trained.path / name, tmp_path)
    return tmp_path


def change(folder, **values):
    """Change the description; a key `a__b` is `b` in `a`."""
    path = folder / DESCRIPTION
    described = json.loads(path.read_text())
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
        ({"format": 3}, "format 3 upgrade"),
        ({"format": 1}, "format 1 earlier train"),
        ({"format": "2"}, "format '2'"),
        ({"classes": []}, "classes"),
        ({"classes": ["cat", 3]}, "classes"),
        ({"classes": "cat"}, "classes"),
        ({"classes": ["cat", "dog", "owl"]}, "weights are not those"),
        ({"classes": [str(k) for k in range(10**6)]}, "weights are not those"),
        ({"model__backbone": "convnett"}, "unknown backbone"),
        ({"model__backbone": "../../etc/passwd"}, "unknown backbone"),
        ({"model__backbone": "resnet152"}, "weights are not those"),
        ({"model__head": "closed"}, "head"),
        ({"model__networks": 10**9}, "networks"),
        ({"model__networks": 0}, "networks"),
        ({"preprocessing__size": 10**6}, "preprocessing"),
        ({"preprocessing__decoded": -1}, "preprocessing"),
        ({"preprocessing__std": [0, 0, 0]}, "preprocessing"),
        ({"preprocessing__mean": ["a", 0, 0]}, "could not convert"),
        ({"preprocessing__mean": [0.5], "preprocessing__std": [0.5]}, "preprocessing"),
        ({"preprocessing__resampling": "nearest"}, "nearest"),
        ({"score__name": "__import__('os')"}, "unknown score"),
        ({"score__name": "knn"}, "cannot be used"),
        ({"threshold__value": float("nan")}, "threshold"),
        ({"threshold": 3}, "cannot be used"),
        ({"views": 10**9}, "views"),
        ({"sha256": "0"}, WEIGHTS),
    ],
)
def test_a_description_that_cannot_be_used(folder, values, message):
    change(folder, **values)
    with pytest.raises(MedicError, match=naming(message)) as caught:
        medic.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "{}", '{"format": 2}', "[" * 10**5, "\x00" * 100])
def test_what_is_not_a_description(folder, text):
    (folder / DESCRIPTION).write_text(text)
    with pytest.raises(MedicError, match=str(folder)):
        medic.load(folder)


def test_a_large_network_is_not_made_for_a_small_file(folder):
    change(folder, model__backbone="vit_giant_patch14_224", preprocessing__size=224)  # 4 GB of weights
    tracemalloc.start()
    with pytest.raises(MedicError, match=naming("weights are not those")):
        medic.load(folder)
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()


def test_other_weights_of_the_same_network_are_refused(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS)
    with pytest.raises(MedicError, match=naming(WEIGHTS)):
        medic.load(folder)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MedicError, match=naming(f"{tmp_path} {DESCRIPTION}")):
        medic.load(tmp_path)
