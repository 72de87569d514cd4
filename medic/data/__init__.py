"""Data: benchmarks by name, splits, augmentation."""

from medic.data.augment import RECIPES, Recipe
from medic.data.catalog import BENCHMARKS, Benchmark, benchmark
from medic.data.dataset import Dataset
from medic.data.splits import UNKNOWN, Problem, Samples, make_problem

__all__ = [
    "BENCHMARKS",
    "RECIPES",
    "UNKNOWN",
    "Benchmark",
    "Dataset",
    "Problem",
    "Recipe",
    "Samples",
    "benchmark",
    "make_problem",
]
