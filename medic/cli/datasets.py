"""`medic datasets`."""

from jsonargparse import ArgumentParser, Namespace


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
            "known": str(bench.known or "all"),
            "classes": str(len(bench.classes) or "yours"),
            "images": str(sum(map(sum, bench.counts.values())) or "–"),
            "pixels": str(bench.image_size),
            "backbone": bench.backbone,
            "what it is": bench.description,
        }
        for bench in BENCHMARKS.values()
    ]
    print_rows(rows, as_json=arguments.json)
    return 0
