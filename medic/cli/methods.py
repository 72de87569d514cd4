"""`medic methods`."""

from jsonargparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """How to print."""
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """List the methods with what each differs in."""
    from medic.methods import METHODS
    from medic.report.table import print_rows

    rows = [
        {
            "method": method.name,
            "idea": method.idea,
            "differs in": method.differs,
            "objective": method.objective,
            "grid": " × ".join(map(str, method.grid.splits.values())) or "one task",
            "steps": ",".join(map(str, method.grid.sizes)),
            "source": method.citation,
        }
        for method in METHODS.values()
    ]
    print_rows(rows, as_json=arguments.json)
    return 0
