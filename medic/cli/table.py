"""`medic table`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from medic.experiments.tables import Table


def add_options(parser: ArgumentParser) -> None:
    """Which runs, which evaluation of each, and how to show them."""
    parser.add_argument("folders", type=str, nargs="+", help="directories that runs are in, or runs")
    parser.add_argument(
        "--selection",
        type=str,
        default="validation",
        help="which evaluation counts: validation, domainbed, last, leave-one-out or oracle [validation]",
    )
    parser.add_argument(
        "--metrics", type=str, nargs="*", default=[], help="keys of results.jsonl: acc, hscore/oracle-10, auroc, …"
    )
    parser.add_argument("--columns", type=str, default="auto", help="target or source domains, or auto [auto]")
    parser.add_argument("--format", type=str, default="text", help="text, markdown, latex, csv or json [text]")
    parser.add_argument("--paper", type=str | None, default=None, help="put a table of the paper beside: pacs-resnet50")
    parser.add_argument(
        "--compare", type=str, nargs=2, default=None, metavar="ROW", help="test one row against another"
    )
    parser.add_argument(
        "--explain", type=str, nargs=2, default=None, metavar=("ROW", "COLUMN"), help="list the runs behind a cell"
    )


def run(arguments: Namespace) -> int:
    """Print a table of runs."""
    from medic.errors import check_choice
    from medic.experiments.results import collect
    from medic.experiments.tables import METRICS, Metric, tabulate
    from medic.report.formats import FORMATS, to_terminal

    check_choice("format", arguments.format, ["text", *FORMATS])
    collection = collect(Path(folder) for folder in arguments.folders)
    metrics: Mapping[str, Metric] = METRICS
    against = None
    if arguments.paper is not None:
        from medic.report.against import against_paper, paper_metrics

        metrics, against = paper_metrics(arguments.paper), against_paper(arguments.paper)
    if arguments.metrics:
        metrics = {key: Metric(key) for key in arguments.metrics}
    for note in collection.notes():
        print(f"medic: note: {note}", file=sys.stderr)
    table = tabulate(collection.results, arguments.selection, metrics, arguments.columns)
    if arguments.explain:
        label, column = arguments.explain
        return _explain(table, label, column, arguments.selection)
    if arguments.compare:
        return _compare(table, *arguments.compare)
    if arguments.format == "text":
        width = get_terminal_size().columns if sys.stdout.isatty() else 200
        print(to_terminal(table, against, width), end="")
    else:
        print(FORMATS[arguments.format](table, against), end="")
    return 1 if collection.damaged else 0


def _compare(table: "Table", first: str, second: str) -> int:
    """Print how much more one row has than another."""
    from medic.experiments.comparison import compare
    from medic.experiments.tables import find_row
    from medic.report.table import print_rows

    ours, theirs = find_row(table, first), find_row(table, second)
    found = [compare(ours, theirs, title, metric, table.columns) for title, metric in table.metrics.items()]
    rows = [
        {
            "metric": one.metric,
            "difference": f"{one.difference:+.2f}",
            "95 % interval": f"{one.low:+.2f} … {one.high:+.2f}",
            "p": f"{one.p:.3f}",
            "pairs": str(one.pairs),
        }
        for one in found
    ]
    print(f"{theirs.label} over {ours.label}, in points, paired over {table.kind}s and seeds:")
    print_rows(rows, numeric=list(rows[0])[1:])
    return 0


def _explain(table: "Table", label: str, column: str, selection: str) -> int:
    """Print where a cell comes from."""
    from medic.errors import check_choice
    from medic.experiments.tables import find_row
    from medic.report.table import print_rows

    row = find_row(table, label)
    cell = row.cells[check_choice(f"{table.kind} domain", column, table.columns)]
    rows = []
    for pick in cell.picks:
        record, environment = pick.result.records[pick.record], pick.result.environment
        rows.append(
            {
                "run": str(pick.result.path),
                "seed": str(pick.trial[0]),
                "draw": str(pick.result.draw),
                "iteration": str(record["iteration"]),
                **{
                    title: f"{metric.scale * (pick.value(metric.key) or 0):.2f}"
                    for title, metric in table.metrics.items()
                },
                "commit": str(environment.get("commit"))[:12],
                "images": str(environment.get("images"))[:12],
                "weights": str(environment.get("weights"))[:12],
            }
        )
    print(f"{row.label}, {column}: {len(rows)} runs, of each the evaluation that {selection!r} selects")
    if rows:
        print_rows(rows)
    return 0


def _number(value: float | None, scale: float) -> str:
    return "–" if value is None else f"{scale * value:.2f}"
