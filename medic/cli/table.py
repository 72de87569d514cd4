"""The `medic table` command."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medic.cli.options import add_format_option
from medic.errors import MedicError, check_choice, counted, one_line
from medic.metrics import DEFAULT, Metric
from medic.reports.terminal import print_rows
from medic.results.cells import Pick
from medic.results.compare import drawn_split
from medic.results.runs import find_runs
from medic.results.table import FORMATS, Against, Row, Table, print_table
from medic.results.tabulate import SELECTIONS, find_metrics, find_row, tabulate, value_text
from medic.results.wording import short

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic table`."""
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders of runs, or run directories")
    parser.add_argument(
        "--selection",
        default="validation",
        choices=SELECTIONS,
        metavar="RULE",
        help=f"model selection: {', '.join(SELECTIONS)} (default: validation)",
    )
    parser.add_argument(
        "--metrics",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME",
        help="metrics to show, by key in results.jsonl: acc, hscore/oracle-10, … (default: acc, hscore and oscr)",
    )
    parser.add_argument(
        "--columns",
        default="auto",
        choices=("auto", "target", "source"),
        metavar="KIND",
        help="domains to use as columns: target, source or auto (default: auto)",
    )
    add_format_option(parser, FORMATS)
    parser.add_argument(
        "--paper", metavar="TABLE", help="table of the paper to compare with (`medic reproduce --list` shows all)"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("BASE", "ROW"), help="test whether ROW differs significantly from BASE"
    )
    parser.add_argument(
        "--honesty",
        action="store_true",
        help="show how much better results would look if the target selected the model",
    )
    parser.add_argument("--explain", nargs=2, metavar=("ROW", "COLUMN"), help="list the runs behind a cell")


def run(arguments: Namespace) -> int:
    """Print a table of runs."""
    special = [name for name in ("explain", "compare", "honesty") if getattr(arguments, name)]
    if len(special) > 1:
        raise MedicError(f"--{special[0]} and --{special[1]} print different tables: use only one of them")
    if special and arguments.format not in ("text", "json"):
        raise MedicError(f"--{special[0]} requires --format text or json, got {arguments.format}")
    collection = find_runs(Path(folder) for folder in arguments.folders)
    for note in collection.notes():
        logger.warning("%s", note)
    metrics: Sequence[Metric] = DEFAULT
    if arguments.paper is not None:
        from medic.reports.against import beside_paper, paper_metrics  # deferred, because it imports torch

        metrics = paper_metrics(arguments.paper)
    if arguments.metrics:
        metrics = find_metrics(arguments.metrics, metrics, collection.finished)
    table = tabulate(collection.finished, arguments.selection, metrics, arguments.columns, collection.missing)
    against: Against | None = None
    if arguments.paper is not None:
        table, against = beside_paper(table, arguments.paper)
    as_json = arguments.format == "json"
    if arguments.explain:
        _explain(table, arguments.explain, as_json)
    elif arguments.honesty:
        _honesty(table, as_json)
    elif arguments.compare:
        _compare(table, arguments.compare, as_json)
    else:
        print_table(table, against, arguments.format)
    return 1 if collection.damaged else 0


def _compare(table: Table, labels: Sequence[str], as_json: bool) -> None:
    """Print the differences between two rows."""
    from medic.results.comparison import compare  # deferred, because it imports scipy

    comparison = compare(table, *labels)
    if not as_json:
        print(comparison)
        return
    for note in comparison.notes:
        logger.warning("%s", note)
    print_rows(comparison.records(), as_json)


def _honesty(table: Table, as_json: bool) -> None:
    """Print each metric of each row, as selected and at the best evaluation on the target."""
    rows = []
    for row in table.rows:
        for metric in map(row.reads, table.metrics):
            honest, gain = row.average(metric, table.columns), row.flattery(metric, table.columns)
            best = None if honest is None or gain is None else honest + gain
            numbers = {"selected": honest, "best on the target": best, "difference": gain}
            rows.append({"row": row.label, "metric": metric.title, **numbers})
    if all(entry["best on the target"] is None for entry in rows):
        missing = f"every {table.kind} ({', '.join(table.columns)})"
        raise MedicError(f"--honesty requires a row with runs for {missing}: train the missing runs first")
    if as_json:
        print_rows(rows, as_json)
        return
    print(f"mean over {counted(len(table.columns), table.kind)}; `best on the target` is not a valid result:")
    names = list(rows[0])[2:]
    texts = [{name: "–" if entry[name] is None else f"{entry[name]:.2f}" for name in names} for entry in rows]
    print_rows([{**entry, **text} for entry, text in zip(rows, texts, strict=True)], numeric=names)
    for note in table.notes:
        print(f"note: {one_line(note)}")


def _explain(table: Table, position: Sequence[str], as_json: bool) -> None:
    """Print the runs behind a cell."""
    label, column = position
    row = find_row(table, label)
    cell = row.cells[check_choice(f"{table.kind} domain", column, table.columns)]
    drawn = any(drawn_split(pick.run) for pick in cell.picks)
    rows = [_origin(table, row, pick, drawn) for pick in cell.picks]
    if as_json:
        print_rows(rows, as_json)
        return
    print(f"{row.label}, {column}: {counted(len(rows), 'run')}, model selection: {table.rule}")
    if rows:
        print_rows([{name: _text(name, value) for name, value in entry.items()} for entry in rows])


def _origin(table: Table, row: Row, pick: Pick, drawn: bool) -> dict[str, Any]:
    """Return the run, seeds, iteration, metrics and environment of a selected evaluation.

    With `drawn`, the entry also lists the unknown classes, because they differ between seeds.
    """
    run = pick.run
    record = pick.evaluation
    return {
        "run": str(run.path),
        "seed": run.trial[0],
        "trial_seed": run.trial[1],
        **({"unknown": run.config.data.unknown} if drawn else {}),
        "draw": run.draw,
        "selection": table.rule,
        "iteration": record["iteration"],
        **({"averaged": "yes"} if record.get("averaged") else {}),
        **{metric.title: pick.value(row.reads(metric)) for metric in table.metrics},
        **{name: run.environment.get(name) for name in ("commit", "images", "weights")},
        **({"decided by": ", ".join(other.path.name for other in pick.decided_by)} if pick.decided_by else {}),
    }


def _text(name: str, value: Any) -> str:
    """Format a value for `--explain`, with abbreviated hashes."""
    if value is not None and name in ("commit", "images", "weights"):
        return short(value)
    return f"{value:.2f}" if isinstance(value, float) else value_text(value)
