"""Data: benchmarks by name, one's own images, splits, augmentation."""

from medic.data.augment import RECIPES, Augmentation, describe_augmentation, make_augmentation
from medic.data.catalog import BENCHMARKS, Benchmark, benchmark
from medic.data.classes import ClassSplit, listed_split, named_split
from medic.data.dataset import Dataset, Opened, Storage
from medic.data.holdout import Parts, make_parts
from medic.data.images import Images, Resident
from medic.data.problem import UNKNOWN, Problem, Samples, choose_domains, make_problem

__all__ = [
    "BENCHMARKS",
    "RECIPES",
    "UNKNOWN",
    "Augmentation",
    "Benchmark",
    "ClassSplit",
    "Dataset",
    "Images",
    "Opened",
    "Parts",
    "Problem",
    "Resident",
    "Samples",
    "Storage",
    "benchmark",
    "choose_domains",
    "describe_augmentation",
    "listed_split",
    "make_augmentation",
    "make_parts",
    "make_problem",
    "named_split",
]
