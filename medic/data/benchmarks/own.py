"""Your own images: folders, lists of files, or a table."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

from medic.data.benchmarks.base import Benchmark
from medic.data.listing import ImageFile, ImageList, list_lines, walk
from medic.errors import MedicError, first_line, lacking, warn
from medic.utils.files import check_root


def read_folder(root: Path) -> ImageList:
    """List `root/<domain>/<class>/<image>`; an image may lie deeper below its class."""
    check_root(root, FOLDER.root_hint)
    entries = []
    for file, parts in walk(root):
        if len(parts) < 3:
            raise MedicError(f"image {file} is not in the folder of a class: use {root}/<domain>/<class>/<image>")
        entries.append(ImageFile(file, "/".join(parts), parts[0], parts[1]))
    if not entries:
        raise MedicError(f"root {root} has no images: use {root}/<domain>/<class>/<image>")
    if all(entry.name.count("/") > 2 for entry in entries):
        example = entries[0]
        warn(
            f"every image lies deeper than its class: {example.name} counts as class {example.label!r} of domain "
            f"{example.domain!r}; if that is wrong, give a folder below {root} as --root"
        )
    return ImageList.of("folder", entries)


def read_lists(root: Path) -> ImageList:
    """List the images of `root/<domain>.txt`, with a line `relative/path label` per image; a label is a number."""
    check_root(root, LISTS.root_hint)
    files = sorted(root.glob("*.txt"))
    if not files:
        raise MedicError(f"root {root} has no lists: write one <domain>.txt per domain, with a line `path label` each")
    entries = [
        ImageFile(str(root / path), path, file.stem, str(label)) for file in files for path, label in list_lines(file)
    ]
    numbers = sorted({int(entry.label) for entry in entries})
    return ImageList.of("lists", entries, classes=[str(number) for number in numbers])


def read_table(path: Path) -> ImageList:
    """List the rows of a CSV or Parquet file with the columns path, class and domain.

    Any further column is an attribute. Paths are relative to the folder of the table.
    """
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise MedicError(f"root {path} {wrong}{TABLE.root_hint}")
    rows = parquet_rows(path) if path.suffix.lower() == ".parquet" else csv_rows(path)
    entries = []
    for number, row in enumerate(rows, start=2):
        missing = [column for column in ("path", "class", "domain") if not row.get(column)]
        if missing:
            raise MedicError(f"{path}, row {number}: no {missing[0]!r}; it has the columns {', '.join(row)}")
        further = {column: value for column, value in row.items() if column not in ("path", "class", "domain")}
        entries.append(ImageFile(str(path.parent / row["path"]), row["path"], row["domain"], row["class"], further))
    if not entries:
        raise MedicError(f"table {path} has no rows")
    return ImageList.of("table", entries)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file in UTF-8."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MedicError(f"table {path} cannot be read: {first_line(error)}") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise MedicError(f"{path}, row {number}: it has more or fewer values than the header has columns")
    return rows


def parquet_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a Parquet file as text."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise lacking(f"{path} needs the package pyarrow, or to be saved as CSV", "parquet") from None
    try:
        rows: list[Mapping[str, object]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise MedicError(f"table {path} cannot be read: {first_line(error)}") from error
    return [{column: "" if value is None else str(value) for column, value in row.items()} for row in rows]


def _own(name: str, description: str, read: Callable[[Path], ImageList], root_is: str) -> Benchmark:
    return Benchmark(
        name=name,
        description=f"your own images: {description}",
        reader=lambda bench, root, seed: read(bench.require_root(root)),
        root_is=root_is,
    )


FOLDER = _own(
    "folder",
    "ROOT/<domain>/<class>/<image>",
    read_folder,
    "the folder of your images, arranged as <domain>/<class>/<image>",
)
LISTS = _own(
    "lists",
    "ROOT/<domain>.txt with a line `path label` for each",
    read_lists,
    "the folder of your lists, a <domain>.txt each with a line `path label` per image",
)
TABLE = _own(
    "table",
    "ROOT is a CSV or Parquet file with path, class, domain, …",
    read_table,
    "the CSV or Parquet file",
)
