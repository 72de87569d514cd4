"""The ablation of the paper: each meta-learning method with tasks by domain, by class, by both and by neither."""

import pytest
import torch

from medic.errors import MedicError
from medic.tasks import Grid
from tests.built import loaded, plan_of
from tests.messages import naming

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
GRID = ("domain_splits", "class_splits", "steps", "repeat")


def grid_of(plan):
    sampler = plan.parts.sampler
    return Grid(plan.grid, seed=plan.seed, sampler=None if sampler is None else sampler.build())


def drawn(iterations=5, **settings):
    """Return a recipe and, for every iteration and step, the domains and classes that the tasks contain."""
    plan, _, problem = loaded(**settings)
    samples, grid = problem.train, grid_of(plan)
    cells = grid.index(samples.label, samples.domain)
    return plan, [
        [
            [(set(samples.domain[t.indices].tolist()), set(samples.label[t.indices].tolist())) for t in step]
            for step in grid.draw(cells, plan.batch_size)
        ]
        for _ in range(iterations)
    ]


@pytest.mark.parametrize("row", CHAINS)
@pytest.mark.parametrize("method", ROWS)
def test_tasks_hold_the_domains_and_classes_of_their_row(mini, method, row):
    plan, iterations = drawn(dataset=mini, method=method, **ROWS[method][row])
    assert plan.grid.sizes == SIZES[row].get(method, (1, 1, 1))
    assert plan.batch_size * plan.grid.tasks == 144
    for steps in iterations:
        assert tuple(map(len, steps)) == plan.grid.sizes
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
    plan = plan_of(dataset=mini, method=method, **ROWS[method][row])
    written = {name: plan.config.settings[name] for name in GRID}
    again = plan_of(**{**written, **plan.user_settings})
    assert again.config.settings == plan.config.settings
    for name in ("splits", "sizes", "repeat"):
        assert getattr(again.grid, name) == getattr(plan.grid, name)


@pytest.mark.parametrize(("splits", "balanced"), [(0, False), (1, True)])
def test_an_axis_of_1_is_balanced_and_one_of_0_is_not(splits, balanced):
    """Of 90 and 10 images of two classes, a task of 20 has 10 and 10, or about 18 and 2."""
    grid = grid_of(plan_of(method="reptile", class_splits=splits, known=["0", "1"]))
    domain = torch.arange(3).repeat_interleave(100)
    y = torch.tensor([0] * 90 + [1] * 10).repeat(3)
    cells = grid.index(y, domain)
    for step in grid.draw(cells, 20):
        for task in step:
            assert (int(y[task.indices].sum()) == 10) == balanced


def test_neither_axis_draws_without_replacement():
    """Three batches of one iteration share no image."""
    grid, y = grid_of(plan_of(method="reptile", **CHAINS[NEITHER])), torch.arange(300) % 6
    (one,), (two,), (three,) = grid.draw(grid.index(y, torch.zeros(300, dtype=torch.long)), 48)
    assert len(set(torch.cat([one.indices, two.indices, three.indices]).tolist())) == 144


@pytest.mark.parametrize(("settings", "sizes"), [
    ({"method": "medic"}, (1, 1)),
    ({"method": "medic++"}, (1, 1, 1)),
    ({"method": "medic++", "class_splits": 6, "steps": "2,2,2"}, (2, 2, 2)),
])  # fmt: skip
def test_one_source_has_tasks_by_class(mini, settings, sizes):
    plan, iterations = drawn(dataset=mini, sources=["printed"], **settings)
    assert plan.grid.sizes == sizes
    for steps in iterations:
        assert sorted(label for step in steps for _, classes in step for label in classes) == list(range(6))


def test_nine_tasks_of_one_source_in_three_steps(mini):
    """Three class splits in every step, each drawn anew."""
    plan, iterations = drawn(dataset=mini, method="medic++", sources=["printed"], steps=1, repeat=3)
    assert plan.grid.sizes == (3, 3, 3)
    for steps in iterations:
        for step in steps:
            assert sorted(label for _, classes in step for label in classes) == list(range(6))


@pytest.mark.parametrize(("settings", "words"), [
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "steps": 3}, "steps 3 tasks 1 --repeat"),
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "steps": "1,1,1"}, "steps 1,1,1 tasks 3 1"),
    ({"method": "mldg", "domain_splits": 0}, "1 meta-training --repeat"),
    ({"method": "mldg", "domain_splits": 1, "class_splits": 1}, "1 meta-training"),
    ({"method": "fish", "class_splits": 3, "steps": 10}, "10 steps tasks 9"),
    ({"method": "medic", "domain_splits": 0, "class_splits": 0}, "diagonal pairing class split"),
    ({"method": "medic++", "class_splits": 0, "sampling": "adaptive"}, "sampling --class-splits"),
    ({"method": "reptile", "domain_splits": 0, "class_splits": 0, "repeat": 3, "separate": "step"},
     "separate effect 'reptile' 1"),
    ({"method": "vrex", "domain_splits": 0}, "penalty 'vrex' tasks step --domain-splits"),
    ({"method": "groupdro", "repeat": 2}, "penalty 'groupdro' domain one step"),
    ({"method": "mvdg", "repeat": 4}, "8 steps 3 trajectories"),
    ({"method": "fish-domainbed", "class_splits": 3, "sampling": "adaptive"}, "effect 'fish-domainbed' --sampling"),
    ({"class_splits": -1}, "class_splits -1 0"),
    ({"repeat": 0}, "repeat 0 1"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(mini, settings, words):
    with pytest.raises(MedicError, match=naming(words)) as error:
        plan_of(dataset=mini, **settings)
    assert "\n" not in str(error.value)
