"""The ablation of the paper: each meta-learning method with tasks by domain, by class, by both and by neither."""

import pytest
import torch
from medic.runs.config import RunConfig
from medic.runs.resolve import resolve

from medic.errors import MedicError

SOURCES = {0, 1, 2}
CLASSES = set(range(6))

NEITHER, DOMAINS, CLASSWISE, BOTH = "neither", "dw", "cw", "dw+cw"
CHAINS = {
    NEITHER: {"domain_splits": 0, "class_splits": 0, "repeat": 3},
    DOMAINS: {"class_splits": 1},
    CLASSWISE: {"domain_splits": 1},
    BOTH: {},
}
ROWS = {
    "maml": CHAINS,
    "reptile": CHAINS,
    "mldg": {
        NEITHER: {"domain_splits": 0, "repeat": 2},
        DOMAINS: {},
        CLASSWISE: {"domain_splits": 1, "class_splits": 2},
        BOTH: {"class_splits": 2},
    },
    "fish": {
        NEITHER: {"domain_splits": 0, "repeat": 3},
        DOMAINS: {},
        CLASSWISE: {"domain_splits": 1, "class_splits": 3},
        BOTH: {"class_splits": 3},
    },
}
"""What is typed, as docs/methods.md has it."""
SIZES = {
    NEITHER: {"mldg": (1, 1)},
    DOMAINS: {"mldg": (1, 1)},
    CLASSWISE: {"mldg": (1, 1)},
    BOTH: {"mldg": (2, 2), **dict.fromkeys(("maml", "reptile", "fish"), (3, 3, 3))},
}
"""The tasks of each step, where they are not 1, 1, 1."""


def planned(mini, **settings):
    return resolve(RunConfig(dataset=mini, target="street", device="cpu", **settings))


def drawn(plan, iterations=5):
    """For every iteration, for every step, the domains and classes that its tasks hold."""
    samples = plan.data.split(plan.data.load(lambda line: None)).train
    grid = plan.training.grid
    cells = grid.index(samples.label, samples.domain)
    return [
        [
            [(set(samples.domain[t.indices].tolist()), set(samples.label[t.indices].tolist())) for t in step]
            for step in grid.draw(cells, plan.training.batch_size)
        ]
        for _ in range(iterations)
    ]


@pytest.mark.parametrize("row", CHAINS)
@pytest.mark.parametrize("method", ROWS)
def test_tasks_hold_the_domains_and_classes_of_their_row(mini, method, row):
    plan = planned(mini, method=method, **ROWS[method][row])
    assert plan.training.grid.sizes == SIZES[row].get(method, (1, 1, 1))
    assert plan.config.batch_size * plan.training.grid.tasks == 144
    for steps in drawn(plan):
        assert tuple(map(len, steps)) == plan.training.grid.sizes
        tasks = [task for step in steps for task in step]
        if row in (NEITHER, CLASSWISE):
            assert all(domains == SOURCES for domains, _ in tasks)
        if row in (NEITHER, DOMAINS):
            assert all(classes == CLASSES for _, classes in tasks)
        if row == DOMAINS:  # every domain is in one task
            assert sorted(domain for domains, _ in tasks for domain in domains) == [0, 1, 2]
        if row == CLASSWISE:
            assert sorted(label for _, classes in tasks for label in classes) == list(range(6))
        if row == BOTH:  # every class of every domain is in one task
            cells = [(domain, label) for domains, classes in tasks for domain in domains for label in classes]
            assert sorted(cells) == [(domain, label) for domain in range(3) for label in range(6)]
            assert all(domains < SOURCES and classes < CLASSES for domains, classes in tasks)


@pytest.mark.parametrize("row", CHAINS)
@pytest.mark.parametrize("method", ROWS)
def test_what_is_written_out_is_the_same_row(mini, method, row):
    plan = planned(mini, method=method, **ROWS[method][row])
    again = resolve(plan.config)
    assert again.config == plan.config
    for name in ("splits", "sizes", "repeat"):
        assert getattr(again.training.grid, name) == getattr(plan.training.grid, name)


@pytest.mark.parametrize(("splits", "balanced"), [(0, False), (1, True)])
def test_an_axis_of_1_is_balanced_and_one_of_0_is_not(splits, balanced):
    """Of 90 and 10 images of two classes, a task of 20 has 10 and 10, or about 18 and 2."""
    plan = resolve(RunConfig(target="street", method="reptile", class_splits=splits, known=["0", "1"]))
    grid = plan.training.grid
    domain = torch.arange(3).repeat_interleave(100)
    y = torch.tensor([0] * 90 + [1] * 10).repeat(3)
    cells = grid.index(y, domain)
    for step in grid.draw(cells, 20):
        for task in step:
            assert (int(y[task.indices].sum()) == 10) == balanced


def test_neither_axis_draws_without_replacement():
    """Three batches of one iteration share no image."""
    plan = resolve(RunConfig(target="street", method="reptile", **CHAINS[NEITHER]))
    grid, y = plan.training.grid, torch.arange(300) % 6
    (one,), (two,), (three,) = grid.draw(grid.index(y, torch.zeros(300, dtype=torch.long)), 48)
    assert len(set(torch.cat([one.indices, two.indices, three.indices]).tolist())) == 144


@pytest.mark.parametrize(("settings", "sizes"), [
    ({"method": "medic"}, (1, 1)),
    ({"method": "medic++"}, (1, 1, 1)),
    ({"method": "medic++", "class_splits": 6, "steps": "2,2,2"}, (2, 2, 2)),
])  # fmt: skip
def test_one_source_has_tasks_by_class(mini, settings, sizes):
    plan = planned(mini, sources=["printed"], **settings)
    assert plan.training.grid.sizes == sizes
    for steps in drawn(plan):
        assert sorted(label for step in steps for _, classes in step for label in classes) == list(range(6))


def test_nine_tasks_of_one_source_in_three_steps(mini):
    """Three class splits in every step, each drawn anew."""
    plan = planned(mini, method="medic++", sources=["printed"], steps=1, repeat=3)
    assert plan.training.grid.sizes == (3, 3, 3)
    for steps in drawn(plan):
        for step in steps:
            assert sorted(label for _, classes in step for label in classes) == list(range(6))


@pytest.mark.parametrize(("settings", "message"), [
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "steps": 3},
     "3 steps cannot be made of 1 tasks, a step holds at least one: use more splits, or --repeat instead"),
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "steps": "1,1,1"},
     "steps 1,1,1 hold 3 tasks, but the grid has 1"),
    ({"method": "mldg", "domain_splits": 0}, "1 step leaves none for meta-training .* --repeat, or another method"),
    ({"method": "mldg", "domain_splits": 1, "class_splits": 1}, "1 step leaves none for meta-training"),
    ({"method": "fish", "class_splits": 3, "steps": 10}, "10 steps cannot be made of 9 tasks"),
    ({"method": "medic", "domain_splits": 0, "class_splits": 0}, "the diagonal pairing needs one step per class split"),
    ({"method": "medic++", "class_splits": 0, "sampling": "adaptive"}, "sampling has no effect where classes are not"),
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "repeat": 3, "separate": "step"},
     "separate has no effect on method 'reptile' with 1 steps"),
    ({"method": "vrex", "domain_splits": 0}, "penalty 'vrex' compares the tasks of a step, and there is one"),
    ({"method": "groupdro", "repeat": 2}, "penalty 'groupdro' remembers every domain, all in one step"),
    ({"method": "mvdg", "repeat": 4}, "8 steps cannot be dealt evenly to 3 trajectories"),
    ({"method": "fish-domainbed", "class_splits": 3, "sampling": "adaptive"},
     "sampling has no effect on method 'fish-domainbed', whose tasks are always the same"),
    ({"class_splits": -1}, "class_splits is -1: give a whole number, 0 or more"),
    ({"repeat": 0}, "repeat is 0: give a whole number, 1 or more"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(mini, settings, message):
    with pytest.raises(MedicError, match=message):
        planned(mini, **settings)
