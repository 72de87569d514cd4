"""Plans and trainers of the tests, on the CPU and with the target `street` unless other settings are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medic.config.plan import Plan
    from medic.data import Dataset, Problem
    from medic.training import Trainer

USUAL = {"target": "street", "device": "cpu"}


def plan_of(**settings: Any) -> Plan:
    """Return the plan of some settings."""
    from medic.config.resolve import resolve

    return resolve({**USUAL, **settings})


def loaded(**settings: Any) -> tuple[Plan, Dataset, Problem]:
    """Return a plan with its images, and the same divided."""
    from medic.config.resolve import resolve
    from medic.runs.data import divide_images, load_images

    plan = resolve({**USUAL, **settings})
    dataset = load_images(plan, plan.device)
    return plan, dataset, divide_images(plan, dataset)


def built(**settings: Any) -> Trainer:
    """Return a new trainer."""
    from medic.runs.build import build_trainer

    return build_trainer(*loaded(**settings))
