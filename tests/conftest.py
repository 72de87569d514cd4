"""Fixtures for all tests: a small benchmark cut out of the built-in one, and a small network to train on it.

Torch is imported inside the functions: the process that hands out the tests to the others needs none of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

    from medic.data import Dataset, Storage

# One thread per process, here and in the processes that tests start: the tests are run in parallel instead.
os.environ["OMP_NUM_THREADS"] = "1"

# The first call of some torch functions imports modules, which is slower than a property's usual deadline.
settings.register_profile("medic", deadline=None)
settings.load_profile("medic")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Load the built-in benchmark."""
    from medic.data import BENCHMARKS, Storage

    bench = BENCHMARKS["digits"]
    return bench.open(bench, None, 0).load(Storage(bench.image_size))


@pytest.fixture(scope="session")
def mini_dataset(digits: Dataset) -> Dataset:
    """Take ten images of every domain and class of it."""
    import torch

    from medic.data import Resident

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


class Ready:
    """A dataset that is loaded already."""

    axes = ()

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.domains, self.classes = dataset, dataset.domains, dataset.classes

    def load(self, storage: Storage) -> Dataset:
        import torch

        from medic.data import Resident

        place = storage.device if storage.where in ("auto", "gpu") else torch.device("cpu")
        return dataclasses.replace(self.dataset, images=Resident(self.dataset.images.pixels.to(place)))


def small_network() -> torch.nn.Module:
    """Build the network of digits with 8 channels in place of 64: it takes (N, 3, 32, 32) and gives (N, 32)."""
    from torch import nn

    from medic.models import ConvNet

    network = ConvNet()
    network.num_features, network.channels = 32, 8
    for block in range(1, 5):
        convolution = nn.Conv2d(3 if block == 1 else 8, 8, kernel_size=3, padding=1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        setattr(network, f"conv{block}", convolution)
    return network


def small_filters(size: int) -> torch.nn.Module:
    """Build a GFNet of 8 channels and four blocks for images of `size` pixels a side."""
    from medic.models.gfnet import GFNet

    return GFNet(dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), image_size=size)


@pytest.fixture
def small_adversaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the generator and the discriminator of ARPL-CS, of 15 million parameters, by small ones."""
    import sys

    from torch import nn

    from medic.objectives.losses import OBJECTIVES

    def generator(channels: int, size: int) -> nn.Module:
        first, last = nn.ConvTranspose2d(100, 8, 4), nn.ConvTranspose2d(8, channels, size // 4, stride=size // 4)
        return nn.Sequential(nn.Unflatten(1, (100, 1, 1)), first, nn.BatchNorm2d(8), nn.ReLU(), last, nn.Sigmoid())

    def discriminator(channels: int) -> nn.Module:
        maps = nn.Sequential(nn.Conv2d(channels, 8, 8, stride=8), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))
        return nn.Sequential(maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1), nn.Flatten(0))

    home = sys.modules[OBJECTIVES["arpl-cs"].kind.__module__]
    monkeypatch.setattr(home, "Generator", generator)
    monkeypatch.setattr(home, "Discriminator", discriminator)


@pytest.fixture
def mini(mini_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a benchmark of 400 images, on which a run takes a second, and return its name.

    Its backbone, `small`, is registered with it, and the backbone of methods that need a GFNet becomes a small one.
    """
    from medic.data import BENCHMARKS
    from medic.models import HALVES, OURS

    bench = dataclasses.replace(
        BENCHMARKS["digits"], name="mini", split="mini-6-4", backbone="small", open=lambda *_: Ready(mini_dataset)
    )
    monkeypatch.setitem(BENCHMARKS, "mini", bench)
    monkeypatch.setitem(OURS, "small", (lambda size: small_network(), HALVES))
    monkeypatch.setitem(OURS, "gfnet_h_ti", (small_filters, OURS["gfnet_h_ti"][1]))
    return "mini"
