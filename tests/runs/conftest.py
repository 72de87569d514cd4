"""Images on disk, for runs in other processes."""

from collections.abc import Iterator
from typing import Any

import pytest

import medic
from tests.data.pictures import picture
from tests.runs.short import SHORT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of a run of a second on three domains of three classes, which any process can do."""
    root = tmp_path_factory.mktemp("images")
    for domain in ("x", "y", "z"):
        for number, label in enumerate(("cat", "dog", "owl")):
            (root / domain / label).mkdir(parents=True)
            for index in range(5):
                picture(10 * number + index, (32, 32)).save(root / domain / label / f"{index}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEDIC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield {
            "dataset": "folder", "root": str(root), "target": "z", "known": ["cat", "dog"], "backbone": "convnet",
            "image_size": 32, "method": "erm", "iterations": 2, "batch_size": 2, "device": "cpu",
        }  # fmt: skip


@pytest.fixture
def run(mini, tmp_path):
    """A finished run."""
    return medic.train(dataset=mini, method="medic++", output=tmp_path, **SHORT)
