"""Readers of the ways in which people keep images: folders, lists and tables."""

import csv
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from medic.data.decode import SUFFIXES
from medic.data.listing import Entry, ImageList
from medic.errors import MedicError, first_line, lacking, warn


def walk(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every image file below a folder with the parts of its name, in order. Links are followed, but not in circles.

    Files are strings here and in what is made of them: there may be a million, and a `Path` takes ten times longer.
    """
    yield from _walk(str(root), (), frozenset())


def _walk(
    folder: str, parts: tuple[str, ...], above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise MedicError(f"folder {folder} cannot be read: {error.strerror}") from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise MedicError(f"folder {folder} is a link that leads back to a folder above it: remove it")
    for entry in entries:
        if entry.name.startswith("."):
            continue
        named = (*parts, entry.name)
        if _is_folder(entry):
            yield from _walk(entry.path, named, above | {identity})
        elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
            yield entry.path, named


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which is said when it is read as an image
        return False


def read_folder(root: Path, name: str = "folder") -> ImageList:
    """`root/<domain>/<class>/<image>`; an image may lie deeper below its class."""
    check_root(root)
    entries = []
    for file, parts in walk(root):
        if len(parts) < 3:
            raise MedicError(f"image {file} is not in a domain's class: {root}/<domain>/<class>/<image> is expected")
        entries.append(Entry(file, "/".join(parts), parts[0], parts[1]))
    if not entries:
        raise MedicError(f"root {root} has no images: {root}/<domain>/<class>/<image> is expected")
    if all(entry.name.count("/") > 2 for entry in entries):
        example = entries[0]
        warn(
            f"every image lies deeper than its class: {example.name} counts as class {example.label!r} of domain "
            f"{example.domain!r}; if that is wrong, give a folder below {root} as the root"
        )
    return ImageList.of(name, entries)


def read_lists(root: Path, name: str = "lists") -> ImageList:
    """One `<domain>.txt` per domain in `root`, a line `relative/path label` per image; the label is a number."""
    check_root(root)
    files = sorted(root.glob("*.txt"))
    if not files:
        raise MedicError(f"root {root} has no lists: one <domain>.txt per domain is expected, `path label` per line")
    entries = [
        Entry(str(root / path), path, file.stem, str(label)) for file in files for path, label in list_lines(file)
    ]  # fmt: skip
    numbers = sorted({int(entry.label) for entry in entries})
    return ImageList.of(name, entries, classes=[str(number) for number in numbers])


def list_lines(file: Path) -> Iterator[tuple[str, int]]:
    """The lines of an image list: a path, which may have spaces, and a number."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MedicError(f"list {file} cannot be read: {first_line(error)}") from error
    for number, line in enumerate(lines, start=1):
        path, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not path or not re.fullmatch(r"-?[0-9]{1,18}", label):
            raise MedicError(f"{file}, line {number}: {line.strip()!r} is not `path label` with a number as the label")
        yield path, int(label)


def read_table(path: Path, name: str = "table") -> ImageList:
    """A CSV or Parquet table with the columns path, class and domain; any further column is an attribute.

    Paths are relative to the table's folder.
    """
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise MedicError(f"table {path} {wrong}: give the CSV or Parquet file itself as the root")
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
    entries = []
    for number, row in enumerate(rows, start=2):
        missing = [column for column in ("path", "class", "domain") if not row.get(column)]
        if missing:
            columns = ", ".join(row)
            raise MedicError(f"{path}, row {number}: no {missing[0]!r}; it has the columns {columns}")
        further = {column: value for column, value in row.items() if column not in ("path", "class", "domain")}
        entries.append(Entry(str(path.parent / row["path"]), row["path"], row["domain"], row["class"], further))
    if not entries:
        raise MedicError(f"table {path} has no rows")
    return ImageList.of(name, entries)


def _csv_rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MedicError(f"table {path} cannot be read: {first_line(error)}") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise MedicError(f"{path}, row {number}: it has more or fewer values than the header has columns")
    return rows


def _parquet_rows(path: Path) -> list[dict[str, str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise lacking(f"{path} needs the package pyarrow, or to be saved as CSV", "parquet") from None
    try:
        rows: list[Mapping[str, object]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise MedicError(f"table {path} cannot be read: {first_line(error)}") from error
    return [{column: "" if value is None else str(value) for column, value in row.items()} for row in rows]


def check_root(root: Path, way: str = "") -> None:
    """Say what is wrong with a root that is no folder, or an empty one, and the `way` out of it."""
    if not root.is_dir():
        raise MedicError(f"root {root} {'is not a folder' if root.exists() else 'does not exist'}{way}")
    if next(root.iterdir(), None) is None:
        raise MedicError(f"root {root} is empty{way}")
