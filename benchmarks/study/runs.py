"""The runs of a study and their records, in a folder with one file per run or in one packed file."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.packed import write_records
from benchmarks.study.methods import METHODS

Records = list[dict[str, Any]]
"""The lines of one run: its settings, its evaluations, then one evaluation of each weight average."""


class Run(NamedTuple):
    """One run of a study."""

    method: str
    target: str
    seed: int
    lr: float | None

    @property
    def file_name(self) -> str:
        """The name of the file with the run's records."""
        rate = "" if self.lr is None else f"-{self.lr:g}"
        method = self.method.replace(" @ ", "@").replace(" ", "-").replace("++", "pp")
        return f"{method}-{self.target}-{self.seed}{rate}.jsonl"


def make_run(method: str, target: str, seed: int, lr: float | None) -> Run:
    """Return a run at a learning rate. A rate that `METHODS` sets for the method overrides `lr`."""
    return Run(method, target, seed, METHODS.get(method, {}).get("lr", lr))


def read_runs(place: Path) -> dict[Run, Records]:
    """Return the records of every run in a folder or a packed file."""
    if place.is_dir():
        text = "".join(path.read_text() for path in sorted(place.glob("*.jsonl")))
    else:
        text = gzip.decompress(place.read_bytes()).decode()
    runs: dict[Run, Records] = {}
    for line in map(json.loads, text.splitlines()):
        if "run" in line:
            lines = runs[make_run(**line["run"])] = []
        lines.append(line)
    return runs


def pack(folders: Sequence[Path], file: Path) -> None:
    """Write the runs of several folders or packed files into one file."""
    runs = {run: lines for folder in folders for run, lines in read_runs(folder).items()}
    write_records((line for run in sorted(runs) for line in runs[run]), file)
    print(f"{len(runs)} runs, {file.stat().st_size >> 10} KiB")
