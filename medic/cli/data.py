"""The `medic data check` and `medic data fetch` commands."""

import csv
import io
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from medic.cli import catalogue
from medic.cli.datasets import make_rows
from medic.cli.options import input_file, output_file
from medic.errors import MedicError, check_choice, respelled
from medic.reports.terminal import print_rows
from medic.runs.layout import check_run
from medic.utils.files import csv_cell, write_text, writing

if TYPE_CHECKING:
    from medic.analysis.wrong_labels import Suspect
    from medic.data import Benchmark
    from medic.data.check import Check, Copy, Found, Place
    from medic.runs.run import Run

MAX_LISTED = 5
"""Maximum number of items to print per list. The rest is only counted."""
COLUMNS = (
    "finding", "between", "path", "domain", "class", "other_path", "other_domain", "other_class", "probability",
)  # fmt: skip
"""Columns of the `--output` file."""


def add_options(parser: ArgumentParser) -> None:
    """Add the action, the dataset, and the options of both actions."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("check", "fetch"),
        metavar="ACTION",
        help="check: verify the images on disk; fetch: download a dataset",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="dataset (`medic datasets` lists all)")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="folder that contains the images, or to download them to"
    )
    parser.add_argument(
        "--runs",
        nargs="*",
        action="extend",
        default=[],
        metavar="RUN",
        help="check: finished runs on these images, used to find labels that are probably wrong",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="check: CSV file to write all duplicates and suspicious labels to",
    )
    parser.add_argument("--url", metavar="URL", help="fetch: URL to download from instead of the default")
    parser.add_argument(
        "--archive", type=input_file, metavar="FILE", help="fetch: archive on disk to extract instead of downloading"
    )


def run(arguments: Namespace) -> int:
    """Check or fetch a dataset."""
    action, root = arguments.action, arguments.root
    if action is None:
        raise MedicError("missing action: use `medic data check NAME --root DIR` or `medic data fetch NAME --root DIR`")
    if arguments.name is None:
        own = f"for your own images, `medic data check folder --root {quote(str(root or 'DIR'))}`"
        way = f"{own}; `medic datasets` lists all" if action == "check" else "`medic datasets` lists all"
        raise MedicError(f"missing dataset: use `medic data {action} NAME`; {way}")
    known = [row["dataset"] for row in catalogue.rows("datasets", make_rows)]
    if Path(arguments.name).is_dir() and arguments.name not in known:
        raise MedicError(
            f"{arguments.name} is a folder: use `medic data {action} folder --root {quote(arguments.name)}`"
        )
    check_choice("dataset", respelled(arguments.name, known), known)
    others = ("runs", "output") if action == "fetch" else ("url", "archive")
    for name in others:
        if getattr(arguments, name):
            raise MedicError(
                f"--{name} works only with `medic data {'check' if action == 'fetch' else 'fetch'}`: omit it"
            )
    if action == "fetch" and root is None:
        raise MedicError(f"missing --root: use `medic data fetch {arguments.name} --root DIR`")
    if action == "check":
        catalogue.check_paths({"dataset": arguments.name, "root": root})
    for run in arguments.runs:
        check_run(Path(run))
    if arguments.output is not None and arguments.output.suffix.lower() != ".csv":
        raise MedicError(f"--output must end in .csv, got {arguments.output}")
    from medic.data import benchmark  # deferred, because it imports torch

    bench = benchmark(arguments.name)
    if action == "fetch":
        from medic.data.fetch import fetch

        print(fetch(bench, root, url=arguments.url, archive=arguments.archive))
        return 0
    return _check(bench, root, arguments.runs, arguments.output)


def _check(bench: "Benchmark", root: Path | None, runs: Sequence[str], output: Path | None) -> int:
    from medic.data.check import check, other_files

    opened = _open_runs(runs) if runs else []
    report = check(bench, root)
    print(f"{bench.name}: {report.place}")
    rows = [
        {"domain": domain, "images": str(sum(counts.values())), **{label: str(n) for label, n in counts.items()}}
        for domain, counts in report.counts.items()
    ]
    if len(rows[0]) > 14:  # a column per class would not fit
        rows = [{"domain": row["domain"], "images": row["images"]} for row in rows]
    print_rows(rows, numeric=list(rows[0])[1:])
    _print_list("differences from the published counts", report.differences)
    _print_list("ignored", report.extra)
    _print_list("unreadable", report.bad)
    if root is not None and (others := other_files(root)):
        print(f"not read: {', '.join(f'{count:,} {kind}' for kind, count in others.most_common(MAX_LISTED))}")
    if bench.counts and not report.differences:
        print("counts: match the published counts")
    if not report.bad:
        print("unreadable images: none")
    if report.equal is not None and report.similar is not None:
        _print_copies(report.equal, report.similar)
    else:
        print("duplicates: not checked for built-in images")
    suspects: list[Suspect] = []
    if opened:
        suspects = _wrong_labels(opened, report.places())
    if output is not None:
        _write(output, report, suspects)
    print(f"image hash: {report.hash}")
    return 0 if report.fine else 1


def _open_runs(paths: Sequence[str]) -> "list[Run]":
    from medic.runs.run import Run

    return [Run(path) for path in paths]


def _wrong_labels(runs: "Sequence[Run]", places: Mapping[str, "Place"]) -> "list[Suspect]":
    """Print the first labels that are probably wrong, and return all of them."""
    from medic.analysis.wrong_labels import held_out, wrong_labels

    predicted = held_out(runs, {name: place.label for name, place in places.items()})
    suspects, count = wrong_labels(predicted), len(predicted.path)
    print(f"labels that are probably wrong: {len(suspects):,} of {count:,} held-out images")
    if suspects:
        rows = [
            {
                "  image": f"  {suspect.path}",
                "class": suspect.label,
                "probably": suspect.probably,
                "% class": f"{100 * suspect.confidence:.1f}",
            }
            for suspect in suspects[: 2 * MAX_LISTED]
        ]
        print_rows(rows, numeric=["% class"])
    if len(suspects) > 2 * MAX_LISTED:
        print(f"  and {len(suspects) - 2 * MAX_LISTED:,} more")
    known = set(predicted.classes)
    if others := sum(place.label in known for place in places.values()) - count:
        how = "no run held them out; add runs with other seeds"
        print(f"labels not checked: {others:,} images of known classes ({how})")
    return suspects


def _write(output: Path, report: "Check", suspects: Sequence["Suspect"]) -> None:
    """Write all findings to a CSV file, one per row."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for kind, copies in (("equal", report.equal), ("similar", report.similar)):
        for copy in copies.copies if copies is not None else ():
            first, *others = copy.images
            rows.writerows(_cells(kind, copy.relation.name.lower(), *first, *other, "") for other in others)
    if suspects:
        places = report.places()
        rows.writerows(
            _cells("label", "", *places[suspect.path], "", "", suspect.probably, f"{suspect.confidence:.6f}")
            for suspect in suspects
        )
    with writing("output", output):
        write_text(output, text.getvalue())
    print(f"all findings: {output}")


def _cells(*values: str) -> list[str]:
    return [csv_cell(value) for value in values]


def _print_copies(equal: "Found", similar: "Found") -> None:
    """Print duplicate images, the most serious kind first."""
    from medic.data.duplicates import Relation

    kinds = (
        (equal, Relation.DOMAINS, "the same image in two domains (the model is tested on a training image)"),
        (similar, Relation.DOMAINS, "similar images in two domains (possible duplicates)"),
        (equal, Relation.CLASSES, "the same image in two classes (one of the labels is wrong)"),
        (similar, Relation.CLASSES, "similar images in two classes (possible duplicates with a wrong label)"),
        (equal, Relation.WITHIN, "the same image twice in one domain and class"),
        (similar, Relation.WITHIN, "similar images in one domain and class (possible duplicates)"),
    )
    for copies, relation, title in kinds:
        lines = [_copy_text(copy, " = " if copies is equal else " ≈ ") for copy in copies.of(relation)[:MAX_LISTED]]
        _print_list(title, lines, copies.counts[relation])
    for copies, title in ((equal, "identical images"), (similar, "similar images")):
        if not sum(copies.counts.values()):
            print(f"{title}: none")


def _copy_text(copy: "Copy", sign: str) -> str:
    names = [str(image) for image in copy.images[:MAX_LISTED]]
    if len(copy.images) > MAX_LISTED:
        names.append(f"{len(copy.images) - MAX_LISTED} more")
    return sign.join(names)


def _print_list(title: str, lines: Sequence[str], count: int | None = None) -> None:
    """Print the first lines of a list. `count` is the total number of items (default: the number of lines)."""
    count = len(lines) if count is None else count
    if not count:
        return
    print(f"{title}: {count:,}")
    for line in lines[:MAX_LISTED]:
        print(f"  {line}")
    if count > MAX_LISTED:
        print(f"  and {count - MAX_LISTED:,} more")
