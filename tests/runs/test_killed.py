"""A run that is killed at any moment and resumed writes the same bytes as one that was left alone."""

import itertools
import random
import time
from multiprocessing import get_context

import pytest

import medic


def start(settings, output):
    """Start a run in a process that is forked from one with torch imported."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["medic.runs.train", "torch._dynamo"])
    process = context.Process(target=medic.train, kwargs={**settings, "output": str(output)})
    process.start()
    return process


def written(output):
    (run,) = output.iterdir()
    return [(run / name).read_bytes() for name in ("model.safetensors", "predictions.npz")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "kills"),
    [({}, 20), ({"backbone": "test_vit", "image_size": 32, "tune": "adapters"}, 10)],
    ids=["everything", "adapters"],
)
def test_kills_change_nothing(folder, tmp_path, parts, kills):
    """Moments are drawn evenly over the time of a whole run: start, training, evaluation, writing of the results."""
    settings = {**folder, "method": "medic++", "iterations": 24, "evaluate_every": 8, "checkpoint_every": 3}
    settings |= {"track": "none", "quiet": True, **parts}
    start(settings, tmp_path / "first").join()  # also writes the store of images
    began = time.monotonic()
    start(settings, tmp_path / "whole").join()
    seconds, whole = time.monotonic() - began, written(tmp_path / "whole")
    draw, killed = random.Random(0), 0
    for trial in itertools.count():
        output = tmp_path / str(trial)
        process = start(settings, output)
        process.join(draw.uniform(0, seconds))
        killed += process.is_alive()
        process.kill()
        process.join()
        again = start(settings, output)
        again.join()
        assert again.exitcode == 0
        assert written(output) == whole
        if killed == kills:
            break
