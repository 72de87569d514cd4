"""Camera traps, whose images have to be sorted."""

import json
from dataclasses import replace

import pytest

from medic.data import benchmark
from medic.data.benchmarks import terra_incognita
from medic.data.fetch import fetch
from tests.data.fetch.archives import below, refused, tar_of, tree, zip_of

IMAGES, LABELS = "eccv_18_all_images_sm", "eccv_18_annotation_files/train.json"


def camera_traps(**changes):
    """Pictures from two of the locations and elsewhere, one of them missing, and the labels of each."""
    images = {
        "i1": ("1.jpg", 38),
        "i2": ("2.jpg", "46"),
        "i3": ("3.jpg", 7),
        "i4": ("4.jpg", 38),
        "i5": ("gone.jpg", 38),
    }
    seen = {"i1": [1, 1, 2], "i2": [3], "i3": [1], "i4": [4], "i5": [1]}
    content = {
        "images": [{"id": key, "file_name": name, "location": place} for key, (name, place) in images.items()],
        "annotations": [{"image_id": key, "category_id": label} for key, labels in seen.items() for label in labels],
        "categories": [{"id": i, "name": name} for i, name in enumerate(("bird", "cat", "empty", "car"), start=1)],
    }
    pictures = {f"{IMAGES}/{name}": name.encode() for name, _ in images.values() if name != "gone.jpg"}
    return {LABELS: json.dumps(content | changes).encode(), **pictures}


@pytest.fixture
def traps(monkeypatch):
    """Camera traps at two locations."""
    monkeypatch.setattr(terra_incognita, "_LOCATIONS", ("38", "46"))
    return replace(benchmark("terra-incognita"), domains=("location_38", "location_46"))


def test_camera_traps_are_sorted_as_in_domainbed(traps, tmp_path):
    archive = tmp_path / "traps.zip"
    archive.write_bytes(zip_of(camera_traps()))
    folder = fetch(traps, tmp_path, archive=archive)
    assert {name: data for name, data in tree(folder).items() if name != LABELS} == {
        "location_38/bird/1.jpg": b"1.jpg",
        "location_38/cat/1.jpg": b"1.jpg",
        "location_46/empty/2.jpg": b"2.jpg",
    }
    archive.write_bytes(tar_of({f"sorted/{name}": data for name, data in tree(folder).items()}))
    assert tree(fetch(traps, tmp_path / "again", archive=archive)) == tree(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": []}, "invalid annotations"),
        ({"categories": 1}, "invalid annotations"),
        ({"annotations": []}, "location_38, location_46"),
    ],
)
def test_camera_traps_with_bad_annotations(traps, tmp_path, changes, words):
    archive, root = tmp_path / "traps.zip", tmp_path / "root"
    archive.write_bytes(zip_of(camera_traps(**changes)))
    refused(lambda: fetch(traps, root, archive=archive), words)
    assert below(root) == []
