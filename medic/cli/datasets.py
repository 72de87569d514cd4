"""`medic datasets`."""

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from medic.data import Benchmark


def add_options(parser: ArgumentParser) -> None:
    """How to print."""
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """List the benchmarks."""
    from medic.data import BENCHMARKS
    from medic.report.table import print_rows

    rows = [
        {
            "dataset": bench.name,
            "domains": ", ".join(bench.domains) or "yours",
            "classes": _classes(bench),
            "split": bench.split or "all known",
            "images": str(sum(map(sum, bench.counts.values())) or bench.images or "–"),
            "pixels": str(bench.image_size or "backbone's"),
            "backbone": bench.backbone,
            "what it is": bench.description,
        }
        for bench in BENCHMARKS.values()
    ]
    print_rows(rows, as_json=arguments.json)
    return 0


def _classes(bench: "Benchmark") -> str:
    """How many there are; of a benchmark whose classes are read from disk, as many as its split has."""
    split = sum(map(int, bench.split.split("-")[1:])) if bench.split else None
    return str(len(bench.classes) or split or "yours")
