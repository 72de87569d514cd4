"""Write predictions as rows of a CSV, JSON Lines or Parquet file, one at a time."""

import csv
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from medic.errors import MedicError, check_choice, lacking, one_line
from medic.utils.files import atomic_write, csv_cell, writing

if TYPE_CHECKING:  # these modules import torch
    from medic.data.decode import BadImage
    from medic.deploy.predictor import Prediction

ROWS = 2**14
"""Rows per row group in a Parquet file."""


class Writer(ABC):
    """Writes one row per image. All rows have the same columns; an unreadable image has only a path and an error."""

    def __init__(self, top: int, threshold: float) -> None:
        self.top, self.threshold = top, threshold
        ranks = [name for rank in range(1, top + 1) for name in (f"top{rank}", f"top{rank}_probability")]
        self.columns = ["path", "label", "known", "score", "threshold", "p_value", *ranks, "error"]

    @abstractmethod
    def write(self, path: str, result: "Prediction | BadImage") -> None:
        """Write one row."""

    def close(self) -> None:  # noqa: B027, most writers do not buffer rows
        """Write any buffered rows."""

    def values(self, path: str, result: "Prediction | BadImage") -> list[Any]:
        """Return the values of a row in column order."""
        if isinstance(result, Exception):
            return [_text(path), *[None] * (len(self.columns) - 2), one_line(str(result))]
        ranks = [value for name, probability in result.top for value in (_text(name), probability)]
        decision = [_text(result.label), result.known, result.score, self.threshold, result.p_value]
        return [_text(path), *decision, *ranks, None]


def _text(name: str) -> str:
    """Escape undecodable bytes in a name, so that the file is valid UTF-8."""
    return name.encode(errors="backslashreplace").decode()


class CsvWriter(Writer):
    """Writes CSV with a header line. Names that look like formulas are escaped; see `csv_cell`."""

    def __init__(self, put: Callable[[str], object], top: int, threshold: float) -> None:
        super().__init__(top, threshold)
        # Python before 3.13 quotes values with \\r only if the line terminator contains \\r.
        self._rows = csv.writer(_Lines(put), lineterminator="\r\n")
        self._rows.writerow(self.columns)

    def write(self, path: str, result: "Prediction | BadImage") -> None:
        """Write one row."""
        row = [csv_cell(value) if isinstance(value, str) else value for value in self.values(path, result)]
        row[2] = row[2] if row[2] is None else str(row[2]).lower()
        self._rows.writerow(row)


class _Lines:
    """A file-like object that converts line endings to Unix style."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put = put

    def write(self, line: str) -> None:
        """Write a line that ends in \\r\\n, with \\n instead."""
        self._put(line[:-2] + "\n")


class JsonWriter(Writer):
    """Writes one JSON object per line. `top` is a list of classes with their probabilities."""

    def __init__(self, put: Callable[[str], object], top: int, threshold: float) -> None:
        super().__init__(top, threshold)
        self._put = put

    def write(self, path: str, result: "Prediction | BadImage") -> None:
        """Write one line."""
        *row, error = self.values(path, result)
        row = [None if isinstance(value, float) and not math.isfinite(value) else value for value in row]
        ranks = zip(row[6::2], row[7::2], strict=True) if error is None else ()
        top = [{"class": name, "probability": probability} for name, probability in ranks]
        entry = {**dict(zip(self.columns[:6], row, strict=False)), "top": top, "error": error}
        self._put(json.dumps(entry) + "\n")


class ParquetWriter(Writer):
    """Writes Parquet, one row group at a time."""

    def __init__(self, file: IO[bytes], top: int, threshold: float) -> None:
        super().__init__(top, threshold)
        pa, pq = _pyarrow()
        kinds = {"known": pa.bool_(), "score": pa.float64(), "threshold": pa.float64(), "p_value": pa.float64()}
        probability = {f"top{rank}_probability": pa.float64() for rank in range(1, top + 1)}
        self._schema = pa.schema([(name, {**kinds, **probability}.get(name, pa.string())) for name in self.columns])
        self._make, self._file = pa.table, pq.ParquetWriter(file, self._schema)
        self._rows: list[list[Any]] = []

    def write(self, path: str, result: "Prediction | BadImage") -> None:
        """Buffer one row, and write the row group when it is full."""
        self._rows.append(self.values(path, result))
        if len(self._rows) == ROWS:
            self._write_group()

    def close(self) -> None:
        """Write the last row group and the file footer."""
        self._write_group()
        self._file.close()

    def _write_group(self) -> None:
        if self._rows:
            arrays = dict(zip(self.columns, zip(*self._rows, strict=True), strict=True))
            self._file.write_table(self._make(arrays, schema=self._schema))
            self._rows = []


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise lacking("--format parquet requires pyarrow", "parquet") from None
    return pyarrow, parquet


FORMATS = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet"}
"""File suffix of each format."""


def pick_format(output: Path | None, file_format: str | None) -> str:
    """Return the requested format, or infer it from the output's suffix. Standard output defaults to CSV."""
    if file_format is not None:
        check_choice("format", file_format, FORMATS)
    elif output is None:
        file_format = "csv"
    else:
        file_format = next((name for name, suffix in FORMATS.items() if suffix == output.suffix.lower()), None)
        if file_format is None:
            endings = ", ".join(FORMATS.values())
            raise MedicError(f"output {output} must end in one of {endings}: rename it, or pass --format")
    if file_format == "parquet":
        _pyarrow()
        if output is None:
            raise MedicError("--format parquet cannot write to standard output: pass a file with -o FILE.parquet")
    return file_format


@contextmanager
def open_writer(output: Path | None, kind: str, top: int, threshold: float) -> Iterator[Writer]:
    """Open a writer for standard output, or for a file that appears once all rows are written."""
    text: Callable[..., Writer] = CsvWriter if kind == "csv" else JsonWriter
    if output is None:
        yield text(sys.stdout.write, top, threshold)
        return
    with writing("output", output), atomic_write(output) as file:
        if kind == "parquet":
            writer: Writer = ParquetWriter(file, top, threshold)
        else:
            writer = text(lambda line: file.write(line.encode()), top, threshold)
        yield writer
        writer.close()
