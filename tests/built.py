"""Recipes and trainers of the tests, on the CPU and with the target `street` unless other settings are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medic.config.recipe import Recipe
    from medic.data import Dataset, Problem
    from medic.training import Trainer

USUAL = {"target": "street", "device": "cpu"}


def recipe_of(**settings: Any) -> Recipe:
    """Return the recipe of some settings."""
    from medic.config.recipe import make_recipe

    return make_recipe({**USUAL, **settings})[0]


def loaded(**settings: Any) -> tuple[Recipe, Dataset, Problem]:
    """Return a recipe with its images, and the same divided."""
    from medic.config.recipe import make_recipe

    recipe, opened = make_recipe({**USUAL, **settings})
    dataset = recipe.data.load(opened, recipe.execution.pick_device())
    return recipe, dataset, recipe.data.divide(dataset, recipe.seed)


def built(**settings: Any) -> Trainer:
    """Return a new trainer."""
    from medic.runs.build import build_trainer

    return build_trainer(*loaded(**settings))
