"""Records of runs in one compressed file, one JSON object per line: small enough to keep beside the code."""

import argparse
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from medic.runs.run import Run

Record = dict[str, Any]
STUDY = ("dataset", "backbone", "tune")
"""Settings that separate one table from the next."""


def read_records(file: Path) -> list[Record]:
    """Return the records of a packed file."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def write_records(records: Iterable[Record], file: Path) -> None:
    """Pack records into a file, with seven digits per number. The same records always give the same bytes."""
    lines = (json.loads(json.dumps(record), parse_float=_shorten) for record in records)
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))


def _shorten(number: str) -> float:
    return float(f"{float(number):.7g}")


def finished_runs(folder: Path) -> list[Run]:
    """Return the finished runs in a folder."""
    return [Run(done.parent) for done in sorted(folder.glob("*/done"))]


def describe_run(run: Run) -> Record:
    """Return the entries that a record has for the settings of its study, its method, target and seed."""
    config = run.config
    return {
        "dataset": config.data.dataset,
        "backbone": config.model.backbone,
        "tune": config.model.tune,
        "method": run.method,
        "target": ", ".join(run.targets),
        "seed": config.run.seed,
    }


def by_study(records: Sequence[Record], names: Sequence[str] = STUDY) -> Iterator[tuple[str, list[Record]]]:
    """Yield the title and the records of every study."""
    for study in dict.fromkeys(tuple(record[name] for name in names) for record in records):
        own = [record for record in records if tuple(record[name] for name in names) == study]
        yield ", ".join(f"{name} {value}" for name, value in zip(names, study, strict=True)), own


def parse_records(description: str | None, measure: Callable[[Path], Iterable[Record]]) -> list[Record]:
    """Parse a command line with folders of runs or packed files, and return their records.

    Args:
        description: the help text of the command.
        measure: makes the records of a folder.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, help="folders of runs, or packed files")
    parser.add_argument("--pack", type=Path, help="write the records into this file")
    arguments = parser.parse_args()
    records: list[Record] = []
    for place in arguments.places:
        records += measure(place) if place.is_dir() else read_records(place)
    if arguments.pack:
        write_records(records, arguments.pack)
    return records


def percent(values: Iterable[float]) -> str:
    """Return the mean of some shares, in percent."""
    return f"{100 * fmean(values):.1f}"
