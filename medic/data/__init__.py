"""Data: benchmarks by name, one's own images, splits, augmentation."""

from medic.data.augment import RECIPES, Recipe
from medic.data.catalog import BENCHMARKS, Benchmark, benchmark
from medic.data.dataset import Dataset, Opened, Storage
from medic.data.images import Images, Resident
from medic.data.splits import UNKNOWN, Problem, Samples, make_problem

__all__ = [
    "BENCHMARKS",
    "RECIPES",
    "UNKNOWN",
    "Benchmark",
    "Dataset",
    "Images",
    "Opened",
    "Problem",
    "Recipe",
    "Resident",
    "Samples",
    "Storage",
    "benchmark",
    "make_problem",
]
