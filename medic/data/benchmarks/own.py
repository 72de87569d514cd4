"""Your own images, read from folders, file lists or a table."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

from medic.data.benchmarks.base import Benchmark
from medic.data.listing import ImageFile, ImageList, list_lines, walk
from medic.errors import MedicError, first_line, lacking, warn
from medic.utils.files import check_root


def read_folder(root: Path) -> ImageList:
    """List images in `root/<domain>/<class>/<image>`. Images may be nested deeper below their class folder."""
    check_root(root, FOLDER.root_hint)
    entries = []
    for file, parts in walk(root):
        if len(parts) < 3:
            raise MedicError(f"image {file} is not in a class folder: expected {root}/<domain>/<class>/<image>")
        entries.append(ImageFile(file, "/".join(parts), parts[0], parts[1]))
    if not entries:
        raise MedicError(f"root {root} contains no images: expected {root}/<domain>/<class>/<image>")
    if all(entry.name.count("/") > 2 for entry in entries):
        example = entries[0]
        warn(
            f"every image is nested below its class folder: {example.name} is assigned to class {example.label!r} of "
            f"domain {example.domain!r}; if this is wrong, pass a subfolder of {root} as --root"
        )
    return ImageList.of("folder", entries)


def read_lists(root: Path) -> ImageList:
    """List images from `root/<domain>.txt` files with lines `relative/path label`, where the label is a number."""
    check_root(root, LISTS.root_hint)
    files = sorted(root.glob("*.txt"))
    if not files:
        raise MedicError(
            f"root {root} contains no lists: expected one <domain>.txt per domain, with one line per image in the form "
            "`path label`"
        )
    entries = [
        ImageFile(str(root / path), path, file.stem, str(label)) for file in files for path, label in list_lines(file)
    ]
    numbers = sorted({int(entry.label) for entry in entries})
    return ImageList.of("lists", entries, classes=[str(number) for number in numbers])


def read_table(path: Path) -> ImageList:
    """List images from a CSV or Parquet file with `path`, `class` and `domain` columns.

    All other columns become attributes. Paths are relative to the table's folder.
    """
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise MedicError(f"root {path} {wrong}{TABLE.root_hint}")
    rows = parquet_rows(path) if path.suffix.lower() == ".parquet" else csv_rows(path)
    entries = []
    for number, row in enumerate(rows, start=2):
        missing = [column for column in ("path", "class", "domain") if not row.get(column)]
        if missing:
            raise MedicError(f"{path}, row {number}: missing {missing[0]!r}; columns of the table: {', '.join(row)}")
        further = {column: value for column, value in row.items() if column not in ("path", "class", "domain")}
        entries.append(ImageFile(str(path.parent / row["path"]), row["path"], row["domain"], row["class"], further))
    if not entries:
        raise MedicError(f"table {path} is empty: expected one row per image")
    return ImageList.of("table", entries)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a UTF-8 CSV file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MedicError(f"table {path} cannot be read: {first_line(error)}") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise MedicError(f"{path}, row {number}: the number of values does not match the header")
    return rows


def parquet_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a Parquet file, with all values as text."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise lacking(f"reading {path} requires pyarrow (or save the table as CSV)", "parquet") from None
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
    "the folder with your images, arranged as <domain>/<class>/<image>",
)
LISTS = _own(
    "lists",
    "ROOT/<domain>.txt with a line `path label` per image",
    read_lists,
    "the folder with your lists, one <domain>.txt per domain with a line `path label` per image",
)
TABLE = _own(
    "table",
    "ROOT is a CSV or Parquet file with the columns path, class, domain, …",
    read_table,
    "the path of a CSV or Parquet file",
)
