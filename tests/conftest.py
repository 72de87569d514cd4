"""Fixtures for all tests: a small benchmark cut out of the built-in one, and a cache that the tests share."""

import dataclasses
import hashlib

import pytest
import torch
from hypothesis import settings

from medic.data import BENCHMARKS, Dataset, DatasetSummary, LazyDataset, Resident, Storage

# The first call of some torch functions imports modules, which is slower than a property's usual deadline.
settings.register_profile("medic", deadline=None)
settings.load_profile("medic")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """The built-in benchmark."""
    bench = BENCHMARKS["digits"]
    return bench.open().load(Storage(bench.image_size))


@pytest.fixture(scope="session")
def mini_dataset(digits: Dataset) -> Dataset:
    """Ten images of every cell of it."""
    kept = torch.tensor([index for index, path in enumerate(digits.paths) if int(path[-3:]) < 10])
    return dataclasses.replace(
        digits,
        name="mini",
        images=Resident(digits.images.gather(kept, torch.device("cpu"))),
        domain=digits.domain[kept],
        label=digits.label[kept],
        paths=tuple(digits.paths[index] for index in kept),
        hash=hashlib.sha256(b"mini").hexdigest(),
    )


@dataclasses.dataclass(frozen=True)
class Ready(LazyDataset):
    """A dataset that is loaded already."""

    dataset: Dataset

    def look(self, storage: Storage) -> DatasetSummary:
        return DatasetSummary(self.dataset.hash, {}, None)

    def load(self, storage: Storage) -> Dataset:
        place = storage.device if storage.where in ("auto", "gpu") else torch.device("cpu")
        return dataclasses.replace(self.dataset, images=Resident(self.dataset.images.pixels.to(place)))


@pytest.fixture
def mini(mini_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a benchmark of 400 images, on which a run takes a second."""
    ready = Ready("mini", mini_dataset.domains, mini_dataset.classes, mini_dataset)
    bench = dataclasses.replace(BENCHMARKS["digits"], name="mini", split="mini-6-4", reader=lambda *_: ready)
    monkeypatch.setitem(BENCHMARKS, "mini", bench)
    return "mini"
