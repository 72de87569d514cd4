"""Images on disk, for runs in other processes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import medic
from medic.data import Dataset
from tests.data.pictures import picture
from tests.runs.short import SHORT
from tests.small import record_no_chance, register_mini


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


@pytest.fixture(scope="session")
def finished(mini_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, trained once; tests get copies."""
    with pytest.MonkeyPatch.context() as patch:
        register_mini(patch, mini_dataset)
        record_no_chance(patch)
        return medic.train(dataset="mini", method="medic++", output=tmp_path_factory.mktemp("finished"), **SHORT).path


@pytest.fixture
def run(mini: str, finished: Path, tmp_path: Path) -> medic.Run:
    """A finished run, in a directory of its own."""
    return medic.Run(shutil.copytree(finished, tmp_path / finished.name))
