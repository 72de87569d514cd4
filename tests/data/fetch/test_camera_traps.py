"""Camera traps, whose images have to be sorted."""

import json

import pytest

from medic.data.fetch import fetch
from medic.data.sources import DOWNLOADS, Download, Sorting
from tests.data.fetch.archives import LIMITS, below, refused, tar_of, tree, zip_of


def camera_traps(**changes):
    """Pictures from two of the places and elsewhere, one of them missing, and what was seen in each."""
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
    pictures = {f"images/{name}": name.encode() for name, _ in images.values() if name != "gone.jpg"}
    return {"labels/train.json": json.dumps(content | changes).encode(), **pictures}


@pytest.fixture
def traps(monkeypatch):
    """Make `toy` a benchmark of camera traps at two places."""
    sorting = Sorting("images", ("labels/*.json",), ("38", "46"), ("bird", "cat", "empty"))
    layouts = (("images", "labels"), ("location_38", "location_46"))
    monkeypatch.setitem(DOWNLOADS, "toy", Download((), layouts, "traps", "http://page", LIMITS, sorting))


def test_camera_traps_are_sorted_as_domainbed_sorts_them(traps, tmp_path):
    archive = tmp_path / "toy.zip"
    archive.write_bytes(zip_of(camera_traps()))
    folder = fetch("toy", tmp_path, archive=archive)
    assert {name: data for name, data in tree(folder).items() if name != "labels/train.json"} == {
        "location_38/bird/1.jpg": b"1.jpg",
        "location_38/cat/1.jpg": b"1.jpg",
        "location_46/empty/2.jpg": b"2.jpg",
    }
    archive.write_bytes(tar_of({f"sorted/{name}": data for name, data in tree(folder).items()}))
    assert tree(fetch("toy", tmp_path / "again", archive=archive)) == tree(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": []}, "no annotations that can be read"),
        ({"categories": 1}, "no annotations that can be read"),
        ({"annotations": []}, "no location_38, location_46 side by side"),
        ({"images": [{"id": f"i{i}", "file_name": "../../../out", "location": 38} for i in range(1, 6)]}, "leads out"),
    ],
)
def test_camera_traps_with_bad_annotations(traps, tmp_path, changes, words):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(zip_of(camera_traps(**changes)))
    refused(lambda: fetch("toy", root, archive=archive), words)
    assert below(root) == []
