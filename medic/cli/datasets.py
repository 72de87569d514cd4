"""The `medic datasets` command."""

from argparse import ArgumentParser, Namespace
from typing import Any

from medic.cli import catalogue
from medic.cli.options import add_import_option
from medic.errors import check_choice, respelled
from medic.reports.terminal import print_facts, print_rows

HINT = """
digits is built in. Run `medic datasets NAME` to see the classes of a benchmark, the expected folder layouts,
and the default settings for its runs."""


def add_options(parser: ArgumentParser) -> None:
    """Add the dataset name and the output format."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the details of this dataset")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(parser, "Python file or module to execute first, whose datasets are also listed")


def run(arguments: Namespace) -> int:
    """List the benchmarks, or show one benchmark's classes, layouts and default settings."""
    entries = {entry["dataset"]: entry for entry in catalogue.rows("datasets", make_rows, arguments.imports)}
    if arguments.name is not None:
        rows: list[dict[str, Any]] = [entries[check_choice("dataset", respelled(arguments.name, entries), entries)]]
    else:
        rows = [_row(entry) for entry in entries.values()]
    if arguments.json:
        print_rows(rows, as_json=True)
    elif arguments.name is not None:
        _print(rows[0])
    else:
        for row in rows:
            row["domains"] = row["what it is"] if row["domains"] == "yours" else row["domains"]
        columns = ("dataset", "classes", "split", "images", "domains")
        print_rows([{title: row[title] for title in columns} for row in rows])
        print(HINT)
    return 0


def make_rows() -> list[dict[str, Any]]:
    """Return one entry per dataset. Unlike importing this module, this imports torch."""
    from medic.data import list_datasets

    return list_datasets()


def _row(entry: dict[str, Any]) -> dict[str, str]:
    return {
        "dataset": entry["dataset"],
        "domains": ", ".join(entry["domains"]) or "yours",
        "classes": entry["classes"],
        "split": entry["split"] or "all known",
        "images": str(entry["images"] or "–"),
        "pixels": str(entry["run"]["pixels"] or "backbone's"),
        "backbone": entry["run"]["backbone"],
        "what it is": entry["what it is"],
    }


def _print(entry: dict[str, Any]) -> None:
    domains = [name if images is None else f"{name} ({images})" for name, images in entry["domains"].items()]
    layouts = [f"{name} in ROOT or ROOT/{', ROOT/'.join(folders)}" for name, folders in entry["layouts"].items()]
    used = {name: "the backbone's" if value is None else value for name, value in entry["run"].items()}
    facts = {
        "domains": ", ".join(domains) or "yours",
        "images": entry["images"],
        "classes": entry["classes"],
        "split": entry["split"] or "none: all classes are known",
        "known": ", ".join(entry["known"]),
        "unknown": ", ".join(entry["unknown"]),
        "searched": "; ".join(layouts),
        "defaults": ", ".join(f"{name} {value}" for name, value in used.items()),
        "download": f"medic data fetch {entry['dataset']} --root DIR" if entry["fetched"] else None,
    }
    print_facts(f"{entry['dataset']:<15} {entry['what it is']}", facts.items())
