"""`medic data check` and `medic data fetch`."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from medic.data import Benchmark

SHOWN = 5
"""How many of a kind are named before the rest is counted."""


def add_options(parser: ArgumentParser) -> None:
    """What to do with which dataset."""
    parser.add_argument(
        "action",
        type=str | None,
        nargs="?",
        default=None,
        help="check: compare what is there with what should be; fetch: download it",
    )
    parser.add_argument("name", type=str | None, nargs="?", default=None, help="dataset (see `medic datasets`)")
    parser.add_argument("--root", type=str | None, default=None, metavar="DIR", help="where the images are, or go to")
    parser.add_argument("--url", type=str | None, default=None, help="fetch: another address to download from")
    parser.add_argument("--archive", type=str | None, default=None, metavar="FILE", help="fetch: an archive on disk")


def run(arguments: Namespace) -> int:
    """Check or fetch a dataset."""
    from medic.data import benchmark
    from medic.errors import MedicError, check_choice

    if arguments.action is None:
        raise MedicError("what to do? `medic data check NAME --root DIR` or `medic data fetch NAME --root DIR`")
    check_choice("action", arguments.action, ["check", "fetch"])
    if arguments.name is None:
        raise MedicError(f"which dataset? `medic data {arguments.action} NAME`; `medic datasets` names them")
    bench = benchmark(arguments.name)
    if arguments.action == "fetch":
        if arguments.root is None:
            raise MedicError(f"no root given: `medic data fetch {bench.name} --root DIR`")
        return _fetch(bench.name, arguments)
    for name in ("url", "archive"):
        if getattr(arguments, name) is not None:
            raise MedicError(f"--{name} is an option of `medic data fetch`")
    return _check(bench, None if arguments.root is None else Path(arguments.root))


def _check(bench: "Benchmark", root: Path | None) -> int:
    from medic.data.check import check
    from medic.report.table import print_rows

    found = check(bench, root)
    print(f"{bench.name}: {found.place}")
    rows = [
        {"domain": domain, "images": str(sum(counts.values())), **{label: str(n) for label, n in counts.items()}}
        for domain, counts in found.counts.items()
    ]
    if len(rows[0]) > 14:  # a column per class would not fit
        rows = [{"domain": row["domain"], "images": row["images"]} for row in rows]
    print_rows(rows, numeric=list(rows[0])[1:])
    _list("not as published", found.differences)
    _list("left out", found.extra)
    _list("cannot be read", found.bad)
    _list("the same image more than once", [" = ".join(names) for names in found.duplicates])
    if bench.counts and not found.differences:
        print("counts: as published")
    print(f"hash of the images: {found.hash}")
    return 0 if found.fine else 1


def _list(title: str, lines: "list[str] | tuple[str, ...]") -> None:
    if not lines:
        return
    print(f"{title}: {len(lines)}")
    for line in lines[:SHOWN]:
        print(f"  {line}")
    if len(lines) > SHOWN:
        print(f"  and {len(lines) - SHOWN} more")


def _fetch(name: str, arguments: Namespace) -> int:
    from medic.data.fetch import fetch
    from medic.runs.progress import Downloads

    archive = None if arguments.archive is None else Path(arguments.archive)
    with Downloads() as report:
        folder = fetch(name, Path(arguments.root), url=arguments.url, archive=archive, report=report)
    print(folder)
    return 0
