"""What the runs of a table of the paper are made of, and in what runs of ours differ from it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from medic.data import Benchmark, Generated, LazyDataset, benchmark
from medic.errors import MedicError
from medic.runs.config import RunConfig
from medic.runs.resolve import resolve
from medic.tables.reproduction import UNTRAINED, Asked, Line, Reproduction
from medic.tables.results import Result

OPEN = ("seed", "trial_seed", "precision", "save_features", "store_size")
"""What the paper averages over, or does not depend on."""

PUBLISHED = (".jpg", ".jpeg", ".png")
"""What images of the benchmarks are published as; others were written anew."""

Unlike = Mapping[str, tuple[Any, Any]]
"""By name, what is not as in the paper: ours, and the paper's."""


class Conditions:
    """The complete settings of the runs behind the cells of a table, as the paper has them."""

    def __init__(self, table: Reproduction) -> None:
        self._configs = table.configs(Asked())
        self._resolved: dict[tuple[str, tuple[str, ...]], Mapping[str, Any]] = {}

    def unlike(self, line: Line, title: str, result: Result) -> Unlike:
        """In what a run differs from that of a cell; where a cell is a mean over several, from the nearest."""
        return min((self._differences(config, result) for config in self._configs[line.label, title]), key=len)

    def _differences(self, config: RunConfig, result: Result) -> Unlike:
        ours = result.settings
        if ours["dataset"] != config.dataset:
            return {"dataset": (ours["dataset"], config.dataset)}
        try:
            theirs = self._complete(config, ours)
        except MedicError:  # they are of other classes than the benchmark has
            return {"classes": (f"{len(ours['known'])} known", config.split or benchmark(config.dataset).split)}
        found = {
            name: (ours[name], value)
            for name, value in theirs.items()
            if name not in OPEN and name in ours and not _equal(ours[name], value)
        }
        if ours.get("validation") == "official":  # the authors' lists, which hold out what they chose
            found = {name: both for name, both in found.items() if name not in ("validation", "holdout")}
        if "known" in found or "unknown" in found:
            found["classes"] = _counts(ours), _counts(theirs)
        began = ("none", "given") if result.environment.get("weights") is None else ("given", "none")
        if (theirs["backbone"] in UNTRAINED) == (began[0] == "given"):
            found["weights"] = began
        counts = result.environment.get("counts")  # of runs of earlier versions it is not known
        if counts and not _as_published(benchmark(config.dataset), counts):
            found["images"] = sum(counts.values()), "as published"
        if other := [suffix for suffix in result.environment.get("formats", ()) if suffix not in PUBLISHED]:
            found["images"] = ", ".join(other), "as published"
        return {name: both for name, both in found.items() if name not in ("known", "unknown")}

    def _complete(self, config: RunConfig, ours: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that a configuration comes to, on the benchmark as it is published; no images are needed."""
        classes = benchmark(config.dataset).classes or _all_classes(ours)
        key = repr(config), classes
        if key not in self._resolved:

            def find(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
                return Generated(bench.name, bench.domains, classes, _no_images)

            self._resolved[key] = resolve(config, find).config.identity()
        return self._resolved[key]


def _all_classes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of a benchmark that publishes no list, from a run on it, in the order that folders are read."""
    return tuple(sorted({*settings["known"], *settings.get("unknown", ())}, key=str.casefold))


def _as_published(bench: Benchmark, counts: Mapping[str, int]) -> bool:
    """Whether domains have as many images as is published, but for those that are known to be damaged or double."""
    if bench.unique:
        return True
    expected = {domain: sum(numbers) for domain, numbers in bench.counts.items()}
    fewer = sum(expected.values()) - sum(counts.get(domain, 0) for domain in expected)
    alike = all(counts.get(domain, 0) <= number for domain, number in expected.items())
    total = bench.images is None or sum(counts.values()) == bench.images
    return alike and 0 <= fewer <= len(bench.dropped) and total


def _counts(settings: Mapping[str, Any]) -> str:
    return f"{len(settings['known'])} known, {len(settings.get('unknown', ()))} unknown"


def _no_images() -> NoReturn:
    raise MedicError("this benchmark is only described")


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs)
    return bool(_unordered(ours) == _unordered(theirs))


def _unordered(value: Any) -> Any:
    """Names of domains or classes are the same in any order."""
    named = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    return sorted(value) if named else value
