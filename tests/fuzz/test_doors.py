"""A few damaged and hostile inputs for every door; `python -m benchmarks.fuzz` tries thousands."""

import pytest

from benchmarks.fuzz import archives, bits, harness, images, model, predictions, requests, runs
from benchmarks.fuzz.harness import fuzz


@pytest.mark.slow
@pytest.mark.parametrize(
    ("door", "count"),
    [
        (images.DOOR, 100),
        (images.DECODER, 2000),
        (archives.DOOR, 120),
        (runs.DOOR, 30),
        (bits.DOOR, 20),
        (model.DOOR, 200),
        (predictions.DOOR, 200),
        (requests.DOOR, 500),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_input_is_accepted_or_refused(door, count, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SECONDS", 120)  # no measure of time on a machine that others use too
    summary = fuzz(door, tmp_path / "inside", range(count))
    assert (summary.inputs, summary.faults) == (count, {})
    assert summary.accepted
    assert summary.refused
