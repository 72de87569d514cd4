"""The runs in some folders, without torch."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from medic.deploy.layout import DESCRIPTION
from medic.errors import MedicError
from medic.metrics import DEFAULT
from medic.results.compare import row_settings
from medic.results.frames import make_frame
from medic.results.table import Table
from medic.results.tabulate import find_metrics, tabulate
from medic.results.wording import runs_are
from medic.runs.layout import DONE, ERROR, check_run, is_run
from medic.runs.run import Run
from medic.utils.memory import garbage_collection_paused


@dataclass(frozen=True)
class Runs(Sequence[Run]):
    """The runs of some folders. As a sequence, it has the finished ones."""

    finished: tuple[Run, ...]
    unfinished: tuple[Run, ...] = ()
    failed: tuple[Run, ...] = ()
    """Runs whose last attempt failed."""
    damaged: tuple[Run, ...] = ()
    """Runs that cannot be read."""
    folder: Path | None = None
    """The folder that the runs are in, if it is one."""

    def __len__(self) -> int:
        return len(self.finished)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> "Runs": ...

    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self.finished[index]) if isinstance(index, slice) else self.finished[index]

    def table(self, metrics: Sequence[str] | str = (), selection: str = "validation", columns: str = "auto") -> Table:
        """Return a table with a row for every combination of method and user settings.

        Args:
            metrics: Keys of `results.jsonl`, as in `["acc", "oscr"]`; by default accuracy, H-score and OSCR.
            selection: The rule that selects an evaluation of each run: `validation`, `evaluation`, `domainbed`, `last`,
                `leave-one-out` or `oracle`.
            columns: `target` domains, `source` domains, or `auto`.
        """
        keys = [metrics] if isinstance(metrics, str) else metrics
        chosen = find_metrics(keys, DEFAULT, self.finished) if keys else DEFAULT
        return tabulate(self.finished, selection, chosen, columns, self.missing)

    def to_frame(self, every: bool = False) -> Any:
        """Return a pandas frame of the finished runs.

        A row is a run, with the evaluation selected by source validation. With `every`, a row is an evaluation, and the
        column `selected` marks the selected ones. The column `learned` is False for runs that learned nothing. Settings
        are columns by their names, measurements by their paths: `target/acc`. `lr` is the setting; `lr/now` is the
        current value of the schedule.
        """
        return make_frame(self.finished, every)

    def _repr_html_(self) -> str:
        """Return the runs as a notebook shows them: a table, or the reason why there is none."""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        try:
            return self.table()._repr_html_() + notes
        except MedicError as error:
            return f"<p>{html.escape(str(error))}</p>{notes}"

    @property
    def missing(self) -> list[Run]:
        """The unfinished and failed runs whose settings can be read."""
        return [run for run in (*self.unfinished, *self.failed) if _has_settings(run)]

    def notes(self) -> Iterator[str]:
        """Yield a line about everything that a table of the finished runs leaves out."""
        if self.unfinished:
            first = "" if len(self.unfinished) == 1 else "for example "
            yield (
                f"{runs_are(len(self.unfinished))} unfinished ({first}{self.unfinished[0].path}): "
                "rerun the same command to resume"
            )
        for run in self.failed[:3]:
            yield f"{run.path} failed: {run.failure}"
        if len(self.failed) > 3:
            yield f"{len(self.failed) - 3} more runs failed"
        for run in self.damaged:
            yield f"{run.path} is left out: {describe_damage(run)}"


def describe_damage(run: Run) -> str:
    """Return the reason why a run cannot be read, and what to do about it."""
    way = f"; delete {run.path} and run it again" if run.damage.startswith("its ") else ""
    return f"{run.damage}{way}"


def _has_settings(run: Run) -> bool:
    """Return whether the settings of an unfinished run can be read; it may have failed before it wrote them."""
    try:
        return bool(row_settings(run)) and all(isinstance(name, str) for name in (run.method, *run.targets))
    except Exception:
        return False


def load_runs(*folders: Path | str) -> Runs:
    """Return the runs in some folders. A folder may also be a run itself."""
    for folder in folders:
        if not isinstance(folder, Path | str):
            raise MedicError(f"a folder is of type {type(folder).__name__}: give paths, as in load_runs('a', 'b')")
    return find_runs(map(Path, folders))


def find_runs(folders: Iterable[Path]) -> Runs:
    """Read every run in some folders. A folder may also be a run itself."""
    places = list(folders)
    alone = len(places) == 1 and not is_run(places[0])
    return sort_runs(run_directories(places), places[0] if alone else None)


def open_runs(path: Path | str) -> Run | Runs:
    """Return the finished run in a directory, or the runs in a folder."""
    folder = Path(path)
    if is_run(folder) or not folder.is_dir():
        check_run(folder)
        return Run(folder)
    if (folder / DESCRIPTION).exists():
        raise MedicError(f"{folder} is a model, not a run: give the run directory")
    return find_runs([folder])


@garbage_collection_paused()  # a table of many runs takes a tenth less time
def sort_runs(paths: Iterable[Path], folder: Path | None = None) -> Runs:
    """Read the runs in some run directories, which may be all those in a folder."""
    runs = [Run(path, unfinished=True) for path in paths]
    damaged = [run for run in runs if run.damage]
    others = [run for run in runs if not run.damage]
    finished = [run for run in others if run.done]
    failed = [run for run in others if run.failure]
    unfinished = [run for run in others if not run.done and not run.failure]
    return Runs(tuple(finished), tuple(unfinished), tuple(failed), tuple(damaged), folder)


@garbage_collection_paused()
def list_runs(folders: Iterable[Path]) -> Sequence[Run]:
    """Return the runs in some folders, in the order in which they were last written."""
    runs = [Run(path, unfinished=True) for path in run_directories(folders)]
    return sorted(runs, key=lambda run: (run.written, run.path))


def run_directories(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the directories of runs in some folders; a folder may also be a run itself."""
    for folder in folders:
        if not folder.is_dir():
            problem = "is a file" if folder.exists() else "does not exist"
            raise MedicError(f"folder {folder} {problem}: give the --output of a training command, or a run in it")
        if is_run(folder):
            yield folder
            continue
        for path in sorted(folder.iterdir()):
            if _may_be_run(path):
                yield path


def _may_be_run(path: Path) -> bool:
    """Return whether a folder holds a file of a run, or cannot be opened."""
    try:
        return is_run(path) or any((path / name).exists() for name in (ERROR, DONE))
    except OSError:
        return True
