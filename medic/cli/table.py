"""`medic table`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from medic.tables.cells import Metric
    from medic.tables.results import Result
    from medic.tables.table import Table


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
        "--compare", type=str, nargs=2, default=None, metavar=("BASE", "ROW"), help="test ROW against BASE"
    )
    parser.add_argument(
        "--explain", type=str, nargs=2, default=None, metavar=("ROW", "COLUMN"), help="list the runs behind a cell"
    )


def run(arguments: Namespace) -> int:
    """Print a table of runs."""
    from medic.errors import MedicError, check_choice
    from medic.report.formats import FORMATS, Against, print_table
    from medic.tables.results import collect
    from medic.tables.table import METRICS, tabulate

    check_choice("format", arguments.format, ["text", *FORMATS])
    if (arguments.explain or arguments.compare) and arguments.format not in ("text", "json"):
        raise MedicError(f"--explain and --compare are shown as text or json, not as {arguments.format}")
    collection = collect(Path(folder) for folder in arguments.folders)
    for note in collection.notes():
        print(f"medic: note: {note}", file=sys.stderr)
    metrics: Mapping[str, Metric] = METRICS
    if arguments.paper is not None:
        from medic.report.against import beside_paper, paper_metrics

        metrics = paper_metrics(arguments.paper)
    if arguments.metrics:
        metrics = _asked_metrics(arguments.metrics, metrics, collection.results)
    table = tabulate(collection.results, arguments.selection, metrics, arguments.columns, collection.missing)
    against: Against | None = None
    if arguments.paper is not None:
        table, against = beside_paper(table, arguments.paper)
    as_json = arguments.format == "json"
    if arguments.explain:
        _explain(table, arguments.explain, as_json)
    elif arguments.compare:
        _compare(table, arguments.compare, as_json)
    else:
        print_table(table, against, arguments.format)
    return 1 if collection.damaged else 0


def _asked_metrics(
    keys: Sequence[str], titled: "Mapping[str, Metric]", results: "Sequence[Result]"
) -> "Mapping[str, Metric]":
    """Metrics by their keys, with their titles where they have one."""
    from medic.errors import check_choice
    from medic.tables.cells import Metric
    from medic.tables.table import metric_keys

    there = metric_keys(results)
    titles = {metric.key: title for title, metric in titled.items()}
    checked = [check_choice("metric", key, there) for key in keys] if results else keys
    return {titles.get(key, key): Metric(key, there.get(key, 100.0)) for key in checked}


def _compare(table: "Table", labels: Sequence[str], as_json: bool) -> None:
    """Print how much more one row has than another."""
    from medic.errors import MedicError
    from medic.report.table import print_rows
    from medic.tables.comparison import compare
    from medic.tables.table import differences, find_row, mixed_datasets

    ours, theirs = (find_row(table, label) for label in labels)
    if ours is theirs:
        raise MedicError(f"{labels[0]!r} and {labels[1]!r} are one row: a comparison is of two")
    picks = [pick for row in (ours, theirs) for cell in row.cells.values() for pick in cell.picks]
    used = [pick.result for pick in picks]
    for note in (*mixed_datasets(used, table.kind), *differences(used)):
        print(f"medic: note: {note}", file=sys.stderr)
    found = [compare(ours, theirs, title, metric, table.columns) for title, metric in table.metrics.items()]
    if as_json:
        print_rows([{"of": theirs.label, "over": ours.label, **asdict(one)} for one in found], as_json)
        return
    rows = [
        {
            "metric": one.metric,
            "difference": f"{one.difference:+.2f}",
            "95 % interval": f"{one.low:+.2f} … {one.high:+.2f}",
            "p": f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001",
            "pairs": str(one.pairs),
        }
        for one in found
    ]
    print(f"{theirs.label} over {ours.label}, in points, paired over {table.kind}s and seeds:")
    print_rows(rows, numeric=list(rows[0])[1:])


def _explain(table: "Table", place: Sequence[str], as_json: bool) -> None:
    """Print where a cell comes from."""
    from medic.errors import check_choice, counted
    from medic.report.table import print_rows
    from medic.tables.table import find_row

    label, column = place
    row = find_row(table, label)
    cell = row.cells[check_choice(f"{table.kind} domain", column, table.columns)]
    rows: list[dict[str, Any]] = []
    for pick in cell.picks:
        record, environment = pick.result.records[pick.record], pick.result.environment
        read = {title: row.reads(title, metric) for title, metric in table.metrics.items()}
        values = {title: (pick.value(metric.key), metric.scale) for title, metric in read.items()}
        rows.append(
            {
                "run": str(pick.result.path),
                "seed": pick.trial[0],
                "trial_seed": pick.trial[1],
                "draw": pick.result.draw,
                "selection": table.rule,
                "iteration": record["iteration"],
                **({"averaged": "yes"} if record.get("averaged") else {}),
                **{title: None if value is None else scale * value for title, (value, scale) in values.items()},
                **{name: environment.get(name) for name in ("commit", "images", "weights")},
                **({"decided by": ", ".join(other.path.name for other in pick.beside)} if pick.beside else {}),
            }
        )
    if as_json:
        print_rows(rows, as_json)
        return
    print(f"{row.label}, {column}: {counted(len(rows), 'run')}, of each the evaluation that {table.rule!r} selects")
    if rows:
        print_rows([{name: _text(name, value) for name, value in one.items()} for one in rows])


def _text(name: str, value: Any) -> str:
    """A value of an explanation, for people: hashes are short, and what is missing is shown as missing."""
    from medic.tables.results import short

    if value is None:
        return "–"
    if name in ("commit", "images", "weights"):
        return short(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
