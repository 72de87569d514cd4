"""A finished run on images on disk."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import medic
from medic.deploy.model_file import HeldOut
from medic.openset import Reference
from tests.data.pictures import picture


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains of three classes; photographs are not square, and some are rotated by their EXIF."""
    root = tmp_path_factory.mktemp("images")
    for domain in ("x", "y", "z"):
        for number, label in enumerate(("cat", "dog", "owl")):
            (root / domain / label).mkdir(parents=True)
            for index in range(5):
                image = picture(10 * number + index, (40, 30))
                exif = image.getexif()
                exif[0x0112] = 6 if index == 0 else 1
                image.save(root / domain / label / f"{index}.png", exif=exif)
    return root


@pytest.fixture(scope="session")
def settings(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of a run of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEDIC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield {
            "dataset": "folder", "root": str(images), "target": "z", "known": ["cat", "dog"], "backbone": "convnet",
            "image_size": 32, "store_size": 36, "method": "medic++", "iterations": 2, "batch_size": 2, "device": "cpu",
        }  # fmt: skip


@pytest.fixture(scope="session")
def trained(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> medic.Run:
    """A finished run."""
    return medic.train(**settings, output=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="session")
def watched(trained: medic.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with a reference, of pictures; the run of the tests has too few images."""
    predictor = trained.predictor
    output = predictor.infer([picture(seed) for seed in range(1000, 1200)])
    assert output.features is not None
    correct = torch.arange(200) % 4 > 0
    reference = Reference.fit(predictor.score(output), correct, output.features, torch.arange(200) % 2)
    folder = tmp_path_factory.mktemp("model")
    dataclasses.replace(predictor, held_out=HeldOut(predictor.held_out.known, reference)).save(folder)
    return folder


@pytest.fixture(scope="module")
def service(trained: medic.Run) -> Iterator[Any]:
    """The service of the run's model."""
    from tests.deploy.served import Service

    with Service(trained.predictor) as running:
        yield running


@pytest.fixture(scope="module")
def paths(images: Path) -> list[Path]:
    """Images of the target."""
    return sorted(images.glob("z/*/*.png"))
