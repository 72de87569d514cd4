"""Comparison of our runs with the paper's: the paper's complete settings for a cell, and where ours differ."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from medic.config.config import Config
from medic.config.data import DataConfig
from medic.config.protocols import PROTOCOLS, STATED
from medic.config.resolve import resolve
from medic.data import Benchmark, Generated, LazyDataset, benchmark
from medic.errors import MedicError
from medic.results.reproduction import UNTRAINED, Line, Reproduction
from medic.runs.run import Run

IGNORED = ("seed", "trial_seed", "protocol", "precision", "save_features", "store_size")
"""Settings that are not compared with the paper's.

The paper averages over some of them or does not depend on them. The protocol only determines other settings, and the
precision actually used is in the environment.
"""
PRECISION = "fp32"
"""Precision of the authors' code."""
PUBLISHED = (".jpg", ".jpeg", ".png")
"""File formats in which the benchmarks are published."""


class Difference(NamedTuple):
    """A condition that differs from the paper's: our value, the paper's value, and where the latter comes from."""

    ours: Any
    theirs: Any
    source: str


Differences = Mapping[str, Difference]
"""Conditions that differ from the paper's, keyed by name."""


class Conditions:
    """Complete settings of the paper's runs for each table cell, keyed by protocol."""

    def __init__(self, tables: Mapping[str, Reproduction]) -> None:
        self._runs = {protocol: table.runs() for protocol, table in tables.items()}
        self._configs: dict[tuple[str, tuple[str, ...]], Config] = {}

    def differences(self, line: Line, title: str, run: Run) -> Differences:
        """Return the differences between a run and the paper's most similar run for the same cell.

        If the protocols agree on a value and the paper states the setting, the source is the paper.
        """
        place = line.label, title
        by_protocol = {
            protocol: min((self._differences(settings, run) for settings in cells[place]), key=len)
            for protocol, cells in self._runs.items()
        }
        nearest = min(by_protocol, key=lambda protocol: len(by_protocol[protocol]))

        def source(name: str, values: tuple[Any, Any]) -> str:
            if any(differences.get(name) != values for differences in by_protocol.values()):
                return PROTOCOLS[nearest].source
            return "paper" if name in STATED else "both protocols"

        nearest_differences = by_protocol[nearest]
        return {name: Difference(*values, source(name, values)) for name, values in nearest_differences.items()}

    def _differences(self, settings: Mapping[str, Any], run: Run) -> dict[str, tuple[Any, Any]]:
        """Return the conditions in which a run differs from one of the paper's runs, with our value and theirs."""
        data, environment = run.config.data, run.environment
        if data.dataset != settings["dataset"]:
            return {"dataset": (data.dataset, settings["dataset"])}
        bench = benchmark(settings["dataset"])
        try:
            paper = self._complete(settings, data)
        except MedicError:  # the run has classes that the benchmark lacks
            return {"classes": (f"{len(data.known)} known", settings.get("split") or bench.split)}
        ours, theirs = run.identity, paper.identity
        differences = {
            name: (ours[name], value)
            for name, value in theirs.items()
            if name not in IGNORED and not _equal(ours[name], value)
        }
        if data.validation == "official":  # the authors' lists define the held-out images
            differences = {
                name: values for name, values in differences.items() if name not in ("validation", "holdout")
            }
        if differences.keys() & {"known", "unknown"}:
            differences["classes"] = _class_counts(data), _class_counts(paper.data)
        weights, from_scratch = environment.get("weights"), paper.model.backbone in UNTRAINED
        if (weights is None) != from_scratch:
            differences["weights"] = ("given", "none") if from_scratch else ("none", "given")
        if run.config.soup:
            differences["soup"] = len(run.config.soup), "none"
        if (precision := environment["precision"]) != PRECISION:
            differences["precision"] = precision, PRECISION
        if not _as_published(bench, counts := environment["counts"]):
            differences["images"] = sum(counts.values()), "as published"
        if formats := [suffix for suffix in environment["formats"] if suffix not in PUBLISHED]:
            differences["images"] = ", ".join(formats), "as published"
        return {name: values for name, values in differences.items() if name not in ("known", "unknown")}

    def _complete(self, settings: Mapping[str, Any], ours: DataConfig) -> Config:
        """Return the configuration of the paper's run on the published benchmark, without loading images."""
        classes = benchmark(settings["dataset"]).classes or _all_classes(ours)
        key = repr(settings), classes
        if key not in self._configs:

            def find(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
                return Generated(bench.name, bench.domains, classes, _no_images)

            self._configs[key] = resolve(settings, find).config
        return self._configs[key]


def _all_classes(data: DataConfig) -> tuple[str, ...]:
    """Return a benchmark's classes in folder order, taken from a run because there is no published list."""
    return tuple(sorted({*data.known, *data.unknown}, key=str.casefold))


def _as_published(bench: Benchmark, counts: Mapping[str, int]) -> bool:
    """Return whether all domains have the published number of images, apart from known damaged or duplicate images."""
    if bench.unique:
        return True
    expected = {domain: sum(numbers) for domain, numbers in bench.counts.items()}
    missing = sum(expected.values()) - sum(counts.get(domain, 0) for domain in expected)
    no_more = all(counts.get(domain, 0) <= number for domain, number in expected.items())
    total = bench.images is None or sum(counts.values()) == bench.images
    return no_more and 0 <= missing <= len(bench.dropped) and total


def _class_counts(data: DataConfig) -> str:
    return f"{len(data.known)} known, {len(data.unknown)} unknown"


def _no_images() -> NoReturn:
    raise MedicError("this benchmark has a description but no images")


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs)
    return bool(_unordered(ours) == _unordered(theirs))


def _unordered(value: Any) -> Any:
    """Sort domain or class names, whose order does not matter."""
    named = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    return sorted(value) if named else value
