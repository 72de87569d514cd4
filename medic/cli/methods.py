"""`medic methods`."""

from jsonargparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """How to print."""
    parser.add_argument("--json", action="store_true", help="print as JSON, with what a line has no room for")


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
            "paper": method.paper,
            "idea": method.idea,
            "differs in": method.differs,
            "grid": shown_grid(method.grid, method.each_domain),
            "steps": shown_steps(method.grid),
            "CUDA graph": method.capturable,
            "objective": method.objective,
            "source": method.citation,
        }
        for method in METHODS.values()
    ]
    print_rows(rows if arguments.json else [_line(row) for row in rows], as_json=arguments.json)
    return 0


def _line(row: dict[str, str | bool | None]) -> dict[str, str]:
    """What a terminal of 120 columns has room for: of the difference, the part that it is in."""
    return {
        "method": str(row["method"]),
        "paper": str(row["paper"] or "–"),
        "idea": str(row["idea"]),
        "differs in": str(row["differs in"]).split(":")[0],
        "grid": str(row["grid"]),
        "steps": str(row["steps"]),
        "graph": "yes" if row["CUDA graph"] else "no",
    }
