"""`medic methods`."""

from jsonargparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """How to print."""
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """List the methods with what each differs in."""
    from medic.methods import METHODS
    from medic.report.table import print_rows
    from medic.tasks import Grid

    def shown_grid(grid: Grid, each_domain: bool) -> str:
        return "each domain" if each_domain else " × ".join(map(str, grid.splits.values())) or "one task"

    def shown_steps(grid: Grid) -> str:
        return ",".join(map(str, grid.round)) + (f" × {grid.repeat}" if grid.repeat > 1 else "")

    rows = [
        {
            "method": method.name,
            "idea": method.idea,
            "differs in": method.differs,
            "objective": method.objective,
            "grid": shown_grid(method.grid, method.each_domain),
            "steps": shown_steps(method.grid),
            "source": method.citation,
        }
        for method in METHODS.values()
    ]
    print_rows(rows, as_json=arguments.json)
    return 0
