"""Fixtures for all tests: a small benchmark cut out of the built-in one, and small networks to train on it.

Torch is imported inside the functions: the process that distributes the tests over the workers needs none of it.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from medic.data import Dataset

pytest_plugins = ["tests.browser", "tests.skips"]

# One thread per process, here and in the processes that tests start: the tests are run in parallel instead.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests send signals that whoever started pytest may ignore or block: a shell ignores Ctrl-C for background jobs.
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

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
    return bench.open().load(Storage(bench.image_size))


@pytest.fixture(scope="session")
def mini_dataset(digits: Dataset) -> Dataset:
    """Take ten images of every domain and class of it."""
    from tests.small import tenth

    return tenth(digits)


@pytest.fixture
def mini(mini_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a benchmark of 400 images, on which a run takes a second, and return its name.

    Its backbone, `small`, is registered with it, and the backbone of methods that need a GFNet becomes a small one.
    Runs of a second learn nothing, so records have no chance levels.
    """
    from tests.small import record_no_chance, register_mini

    register_mini(monkeypatch, mini_dataset)
    record_no_chance(monkeypatch)
    return "mini"


@pytest.fixture
def small_adversaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the generator and the discriminator of ARPL-CS, of 15 million parameters, by small ones."""
    from medic.systems import arpl
    from tests.small import small_discriminator, small_generator

    monkeypatch.setattr(arpl, "Generator", small_generator)
    monkeypatch.setattr(arpl, "Discriminator", small_discriminator)
