"""The table of methods.

A plain name is the system as the paper's open-set tables have it; a suffix names another form.
"""

from medic.errors import check_choice
from medic.methods.method import Method, ObjectiveName, Rate, Training, make_objective
from medic.strategies import Joint, MultiStep, TwoStep
from medic.tasks import Grid

DOMAINBED_ADAM = Rate(small=1e-3, large=5e-5)
"""DomainBed's rates of Adam."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "erm",
            "minimise the risk of all source images together",
            "nothing: the baseline",
            "Vapnik 1998",
            Grid(),
            Joint(),
        ),
        Method(
            "maml",
            "minimise the risk of the last step, met after the others",
            "strategy: keeps the last step's gradient only",
            "Finn et al. 2017",
            Grid(3, 3),
            MultiStep(weights="last"),
            "ce+ova",
        ),
        Method(
            "reptile",
            "sum the gradients of a chain of steps, which matches them pairwise",
            "grid and strategy: tasks by domain and class, at random",
            "Nichol et al. 2018",
            Grid(3, 3),
            MultiStep(),
            "ce+ova",
        ),
        Method(
            "mldg",
            "a step on some domains must help the others",
            "grid and strategy: two domain splits, meta-train and meta-test, first order",
            "Li et al. 2018",
            Grid(2),
            TwoStep(),
        ),
        Method(
            "mldg-domainbed",
            "MLDG as DomainBed has it",
            "strategy: a fresh Adam step per pair of domains, two of them for meta-testing",
            "Gulrajani and Lopez-Paz 2021",
            Grid(3),
            TwoStep(inner="adam", meta_test=2, bn_buffers="restore"),
            training=Training("adam", lr=DOMAINBED_ADAM, inner_lr="lr", weight_decay=0.0, schedule="constant"),
        ),
        Method(
            "fish",
            "Reptile over domains",
            "grid and strategy: one step per domain",
            "Shi et al. 2022",
            Grid(3),
            MultiStep(),
        ),
        Method(
            "fish-domainbed",
            "Fish as DomainBed has it",
            "strategy: inner Adam that keeps its moments, then half the way to where it led",
            "Gulrajani and Lopez-Paz 2021",
            Grid(3, pairing="ordered"),
            MultiStep(inner="adam", bn_buffers="interpolate", bn_rate=0.5),
            training=Training(lr=0.5, inner_lr=DOMAINBED_ADAM, momentum=0.0, weight_decay=0.0, schedule="constant"),
        ),
        Method(
            "medic",
            "tasks crossed over two domain and two class splits; the second diagonal is met after the first",
            "grid and strategy: diagonal 2 × 2 tasks, second order",
            "Wang et al. 2023",
            Grid(2, 2, pairing="diagonal"),
            TwoStep(second_order=True),
            "ce+ova",
            forward="task",
        ),
        Method(
            "medic-fo",
            "MEDIC without second derivatives",
            "grid and strategy: diagonal 2 × 2 tasks, first order",
            "Wang et al. 2023",
            Grid(2, 2, pairing="diagonal"),
            TwoStep(),
            "ce+ova",
            forward="task",
        ),
        Method(
            "medic++",
            "a chain of steps, each of several tasks by domain and class, confusable classes apart",
            "grid and strategy: 3 × 3 tasks in three steps, adaptive class splits",
            "Wang et al. 2025",
            Grid(3, 3, sampling="adaptive"),
            MultiStep(),
            "ce+ova",
        ),
        Method(
            "arith",
            "aim at the mean of the points the chain visits",
            "strategy: step gradients weighted in arithmetic progression",
            "Wang et al. 2025",
            Grid(3, 3),
            MultiStep(weights="arithmetic"),
            "ce+ova",
        ),
    )
}


def find_method(name: str) -> Method:
    """Look a method up by name."""
    return METHODS[check_choice("method", name, METHODS)]


__all__ = ["DOMAINBED_ADAM", "METHODS", "Method", "ObjectiveName", "Rate", "Training", "find_method", "make_objective"]
