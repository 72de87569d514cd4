"""Fixtures for all tests: a small benchmark cut out of the built-in one, and a cache that the tests share."""

import dataclasses

import pytest
import torch
from hypothesis import settings

from medic.data import BENCHMARKS, Dataset

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
    return BENCHMARKS["digits"].load()


@pytest.fixture(scope="session")
def mini_dataset(digits: Dataset) -> Dataset:
    """Ten images of every cell of it."""
    kept = torch.tensor([index for index, path in enumerate(digits.paths) if int(path[-3:]) < 10])
    return dataclasses.replace(
        digits,
        name="mini",
        images=digits.images[kept],
        domain=digits.domain[kept],
        label=digits.label[kept],
        paths=tuple(digits.paths[index] for index in kept),
    )


@pytest.fixture
def mini(mini_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a benchmark of 400 images, on which a run takes a second."""
    bench = dataclasses.replace(BENCHMARKS["digits"], name="mini", load=lambda: mini_dataset)
    monkeypatch.setitem(BENCHMARKS, "mini", bench)
    return "mini"
