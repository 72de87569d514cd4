"""What samplers learn from, and when."""

import pytest
import torch

from medic.tasks import Grid
from medic.tasks.samplers import SAMPLERS, Adaptive, Probe, softmax_sums


def outputs(seed: int, count: int = 40, classes: int = 5, domains: int = 3):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    y = torch.randint(classes, (count,), generator=generator)
    return logits, y, torch.randint(domains, (count,), generator=generator)


def test_sums_are_those_of_a_loop():
    logits, y, domain = outputs(0)
    sums = softmax_sums(logits, y, domain, 4)
    expected = torch.zeros(4, 5, 6, dtype=torch.double)
    for row, label, place in zip(logits.double().softmax(1), y, domain, strict=True):
        expected[place, label] += torch.cat([row, torch.ones(1)])
    torch.testing.assert_close(sums, expected)
    torch.testing.assert_close(softmax_sums(logits, y, None, 1)[0], expected.sum(0))


def test_an_iteration_is_split_the_same_before_its_turn_and_at_it():
    """Splits that are drawn up to `ahead` iterations early use the same confusion as if they had waited."""
    groups = [(k,) for k in range(5)]
    waiting, early = Adaptive(), Adaptive()
    at_its_turn, drawn = [], []
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    for iteration in range(12):
        at_its_turn.append(waiting.split([0, 2], groups, 2, generators[0]))
        waiting.observe(softmax_sums(*outputs(iteration), 3))
    observed = 0
    for iteration in range(12):
        while iteration - observed > early.ahead:
            early.observe(softmax_sums(*outputs(observed), 3))
            observed += 1
        drawn.append(early.split([0, 2], groups, 2, generators[1], ahead=iteration - observed))
    assert drawn == at_its_turn


def test_a_probe_remembers_nothing():
    probe, fresh = Probe(), Probe()
    probe.observe(softmax_sums(*outputs(0), 3))
    probe.observe(softmax_sums(*outputs(1), 3))
    fresh.observe(softmax_sums(*outputs(1), 3))
    torch.testing.assert_close(probe.confusion([0, 1]), fresh.confusion([0, 1]))
    assert probe.ahead == 0
    assert probe.probes


def test_a_probe_in_ones_own_loop():
    grid = Grid(3, 2, sampling="probe")
    logits, y, domain = outputs(0)
    grid.observe(logits, y, domain)
    assert grid.sampler.confusion([1]).shape == (5, 5)
    assert len(grid(torch.zeros(40, 2), y, domain)) == 3


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_trains_and_resumes(mini, tmp_path, name):
    import medic

    settings = {
        "dataset": mini, "target": "street", "method": "medic++", "sampling": name, "batch_size": 2, "device": "cpu",
        "quiet": True, "iterations": 6,
    }  # fmt: skip
    run = medic.train(output=tmp_path, **settings)
    assert run.config.sampling == name
    assert len(run.records) == 6
