"""Benchmark descriptions as plain values, for tables and listings."""

from typing import Any

from medic.data.benchmarks import BENCHMARKS
from medic.data.benchmarks.base import Benchmark
from medic.data.classes import named_split


def list_datasets() -> list[dict[str, Any]]:
    """Return all benchmarks as plain values: domains, classes, image counts, layouts and default settings."""
    # Names with a colon are the user's own Python objects, not benchmarks.
    return [describe_dataset(bench) for name, bench in BENCHMARKS.items() if ":" not in name]


def describe_dataset(bench: Benchmark) -> dict[str, Any]:
    """Return a benchmark as plain values. If its classes are read from disk, the split tells how many there are."""
    split = named_split(bench.split, bench.name, bench.classes, ()) if bench.split and bench.classes else None
    in_split = sum(map(int, bench.split.split("-")[1:])) if bench.split else None
    return {
        "dataset": bench.name,
        "what it is": bench.description,
        "domains": {domain: sum(bench.counts.get(domain, ())) or None for domain in bench.domains},
        "images": sum(map(sum, bench.counts.values())) or bench.images,
        "classes": str(len(bench.classes) or in_split or "yours"),
        "split": bench.split,
        "known": list(bench.classes if split is None else split.known),
        "unknown": list(() if split is None else split.unknown),
        "layouts": {layout.name: list(layout.folders) for layout in bench.layouts},
        "fetched": bench.download is not None,
        "run": {
            "pixels": bench.image_size,
            "backbone": bench.backbone,
            "augmentation": bench.augment or "set by the starting point",
            "lr of sgd": bench.lr,
        },
    }
