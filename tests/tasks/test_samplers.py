"""What samplers learn from, and when."""

import io
import itertools
import math
import re
import warnings
from collections import Counter

import pytest
import torch

import medic
from medic.tasks import Grid
from medic.tasks.confusable import Confusable
from medic.tasks.lagged import softmax_sums
from medic.tasks.samplers import SAMPLERS, Adaptive, Probe
from medic.training.callbacks import informative
from tests.messages import naming
from tests.runs.parts import in_parts


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


@pytest.mark.parametrize("kind", [Adaptive, Confusable])
@pytest.mark.parametrize("domains", [[0, 2], []])
def test_an_iteration_is_split_the_same_before_its_turn_and_at_it(kind, domains):
    """Splits that are drawn up to `ahead` iterations early use the same matrices as if they had waited."""

    def observation(iteration):  # a domain that is first met halfway
        return softmax_sums(*outputs(iteration, domains=2 if iteration < 6 else 3), 3)

    groups = [(k,) for k in range(5)]
    waiting, early = kind(), kind()
    at_its_turn, drawn = [], []
    for iteration in range(16):
        at_its_turn.append((waiting.past(domains), waiting.split(domains, groups, 2, seeded(iteration))))
        waiting.observe(observation(iteration))
    observed = 0
    for iteration in range(16):
        while iteration - observed > early.ahead:
            early.observe(observation(observed))
            observed += 1
        ahead = iteration - observed
        drawn.append((early.past(domains, ahead), early.split(domains, groups, 2, seeded(iteration), ahead)))
    for (then, split), (before, split_before) in zip(at_its_turn, drawn, strict=True):
        assert split == split_before
        assert (then is None and before is None) or torch.equal(then, before)


@pytest.mark.parametrize("kind", [Adaptive, Confusable])
def test_saved_and_loaded_it_draws_the_same(kind):
    groups = [(k,) for k in range(5)]
    sampler, again = kind(), kind()
    for iteration in range(6):
        sampler.observe(softmax_sums(*outputs(iteration), 3))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    for iteration in range(6, 12):
        splits = [each.split([0, 2], groups, 2, seeded(iteration)) for each in (sampler, again)]
        assert splits[0] == splits[1]
        assert torch.equal(sampler.past([]), again.past([]))
        for each in (sampler, again):
            each.observe(softmax_sums(*outputs(iteration), 3))


def test_lag_of_potentials_is_constant():
    """What is observed in iteration i is used from iteration i + lag on: log K is then u · (1 + 1/2 + 1/4 + …)."""
    sampler = Confusable()
    probability = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.double)
    for iteration in range(2 * sampler.lag):
        potentials = sampler.potentials([0])
        assert (potentials is None) == (iteration < sampler.lag)
        if potentials is not None:
            assert float(potentials[0, 1]) == pytest.approx(0.7 * (2 - 0.5 ** (iteration - sampler.lag)))
        sampler.observe(softmax_sums(probability.log(), torch.tensor([0, 1]), None, 1))


@pytest.mark.parametrize("kind", [Adaptive, Confusable])
def test_more_domains_than_before_keep_what_was_learned(kind):
    few, all_at_once = kind(lag=1), kind(lag=1)
    for domains in (1, 3, 2):
        logits, y, domain = outputs(domains, domains=domains)
        few.observe(softmax_sums(logits, y, domain, domains))
        all_at_once.observe(softmax_sums(logits, y, domain, 3))
    torch.testing.assert_close(few.past([0, 1, 2]), all_at_once.past([0, 1, 2]), rtol=0, atol=0)
    few.observe(softmax_sums(*outputs(0, classes=7), 3))
    assert few.past([0]).shape == (1, 7, 7)


def test_confused_classes_of_each_domain_share_its_tasks():
    """Domain 0 always confuses 0-1 and 2-3, domain 1 0-2 and 1-3: log K is 2.

    So a task is one of these pairs with probability 2 e² / (2 e² + 4), and not 1/3 as at random.
    """
    confused = {0: (1, 0, 3, 2), 1: (2, 3, 0, 1)}
    y, domain = torch.arange(4).repeat(2), torch.arange(2).repeat_interleave(4)
    logits = torch.zeros(8, 4)
    for row in range(8):
        logits[row, confused[int(domain[row])][int(y[row])]] = 50.0
    grid = Grid(2, 2, sampling="confusable")
    for _ in range(60):
        grid.observe(logits, y, domain)
    cells, together = grid.index(y, domain), Counter()
    for _ in range(300):
        for task in (task for step in grid.draw(cells, 2) for task in step):
            (place, first), (_, second) = task.cells
            together[place] += confused[place][first] == second
    expected = 2 * math.e**2 / (2 * math.e**2 + 4)
    for place in (0, 1):
        assert together[place] / 600 == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize("sampling", ["random", "adaptive", "confusable", "probe"])
def test_a_sampler_that_is_told_nothing_says_so_once(sampling):
    logits, y, domain = outputs(0, count=300)
    x = torch.arange(len(y))

    def draws(grid, observes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(40):
                grid(x, y, domain)
                if observes:
                    grid.observe(logits, y, domain)
        return caught

    assert draws(Grid(3, 2, sampling=sampling), observes=True) == []
    assert draws(Grid(3, None, sampling=sampling), observes=False) == []  # it splits no classes
    said = draws(Grid(3, 2, sampling=sampling), observes=False)
    assert len(said) == (sampling != "random")
    for one in said:
        assert re.search(naming(f"sampling {sampling!r} grid.observe"), str(one.message))
        assert one.filename == __file__


def test_many_classes_are_split():
    """345 classes, as DomainNet has."""
    sampler, groups = Confusable(), [(k,) for k in range(345)]
    for iteration in range(sampler.lag):
        sampler.observe(softmax_sums(*outputs(iteration, count=700, classes=345), 3))
    tasks = sampler.split([0, 1, 2], groups, 3, seeded(0))
    assert sorted(itertools.chain(*tasks)) == list(range(345))


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


def test_a_probe_consumes_the_epochs_of_training():
    """As in the authors' code: an epoch of a cell has every image once, trained on or probed."""
    grid = Grid(2, 2, sampling="probe")
    cells = grid.index(torch.arange(16) % 2, torch.arange(16) // 8)
    trained = torch.cat([task.indices for step in grid.draw(cells, 2) for task in step])
    probed = grid.probe(cells, 2).indices
    assert sorted(torch.cat([trained, probed]).tolist()) == list(range(16))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_is_the_same_when_interrupted(mini, tmp_path, monkeypatch, name):
    """Stopped after iteration 2: the same bytes, and what it has learnt by the end, which later splits would use."""
    settings = {
        "dataset": mini, "target": "street", "method": "medic++", "sampling": name, "domain_splits": 2,
        "class_splits": 2, "batch_size": 2, "device": "cpu", "quiet": True, "iterations": 4, "evaluate_every": 4,
        "track": "none",
    }  # fmt: skip
    monkeypatch.setattr(informative, "IMAGES_PER_DOMAIN", 4)
    whole = medic.train(output=tmp_path / "whole", **settings)
    assert whole.settings["sampling"] == name
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (2,))
    for file in ("model.safetensors", "predictions.npz", "model.json"):
        assert (parts.path / file).read_bytes() == (whole.path / file).read_bytes()
    states = [torch.load(run.path / "checkpoint" / "last.pt", weights_only=True) for run in (parts, whole)]
    torch.testing.assert_close(*(state["trainer"]["grid"] for state in states), rtol=0, atol=0)


def test_one_sampler_sees_fresh_images():
    assert [name for name, kind in SAMPLERS.items() if kind.probes] == ["probe"]
