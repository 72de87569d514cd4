"""Runs that the tests of reports share."""

import pytest

import medic
from tests.runs.short import SHORT


@pytest.fixture(scope="session")
def four_runs(tmp_path_factory):
    """Return a function that trains two methods with two seeds, once, and returns their folder."""
    folder = tmp_path_factory.mktemp("runs") / "four"

    def trained(dataset):
        if not folder.exists():
            for method in ("erm", "medic++"):
                for seed in (0, 1):
                    medic.train(dataset=dataset, method=method, seed=seed, output=folder, **SHORT)
        return folder

    return trained
