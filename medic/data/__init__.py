"""Datasets: benchmarks, your own images, class splits and augmentation."""

from medic.data.augment import RECIPES, Augmentation, describe_augmentation, make_augmentation
from medic.data.benchmarks import BENCHMARK_GROUP, BENCHMARKS, benchmark
from medic.data.benchmarks.base import Benchmark
from medic.data.benchmarks.describe import list_datasets
from medic.data.classes import ClassSplit, drawn_split, listed_split, named_split
from medic.data.dataset import Dataset, Generated, LazyDataset
from medic.data.holdout import Parts, make_parts
from medic.data.images import Images, Resident
from medic.data.listing import ImageList
from medic.data.problem import UNKNOWN, Problem, Samples, choose_domains, make_problem
from medic.data.store import Storage

__all__ = [
    "BENCHMARKS",
    "BENCHMARK_GROUP",
    "RECIPES",
    "UNKNOWN",
    "Augmentation",
    "Benchmark",
    "ClassSplit",
    "Dataset",
    "Generated",
    "ImageList",
    "Images",
    "LazyDataset",
    "Parts",
    "Problem",
    "Resident",
    "Samples",
    "Storage",
    "benchmark",
    "choose_domains",
    "describe_augmentation",
    "drawn_split",
    "list_datasets",
    "listed_split",
    "make_augmentation",
    "make_parts",
    "make_problem",
    "named_split",
]
