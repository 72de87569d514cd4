"""Finished runs to analyze."""

import pytest

import medic
from tests.runs.short import SHORT


@pytest.fixture
def make_run(mini, tmp_path):
    """Train a run of a second, with features and the weights of its last iteration."""

    def make(method, **settings):
        usual = {"save_features": True, "averaging": "none", "evaluate_every": 4, "objective": "ce+ova"}
        return medic.train(dataset=mini, method=method, output=tmp_path / "runs", **{**SHORT, **usual, **settings})

    return make
