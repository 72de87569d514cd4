"""Collections of runs, read from folders without importing torch."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from medic.config.settings import known_setting, setting_name
from medic.deploy.layout import DESCRIPTION
from medic.errors import MedicError
from medic.metrics import DEFAULT
from medic.results.compare import alternatives, has_value, row_settings
from medic.results.frames import make_run_frame
from medic.results.table import Table
from medic.results.tabulate import find_metrics, tabulate
from medic.results.wording import runs_are
from medic.runs.layout import DONE, ERROR, check_run, is_run
from medic.runs.run import Run
from medic.utils.memory import garbage_collection_paused

if TYPE_CHECKING:
    from medic.results.comparison import Comparison


@dataclass(frozen=True)
class Runs(Sequence[Run]):
    """The runs in one or more folders. As a sequence, it contains the finished runs."""

    finished: tuple[Run, ...]
    unfinished: tuple[Run, ...] = ()
    failed: tuple[Run, ...] = ()
    """Runs whose last attempt failed."""
    damaged: tuple[Run, ...] = ()
    """Runs that cannot be read."""
    folder: Path | None = None
    """Folder that contains the runs, if there is only one."""

    def __len__(self) -> int:
        return len(self.finished)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> "Runs": ...

    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self.finished[index]) if isinstance(index, slice) else self.finished[index]

    def __repr__(self) -> str:
        states = ("finished", "unfinished", "failed", "damaged")
        counts = {state: len(getattr(self, state)) for state in states}
        text = ", ".join(f"{count} {state}" for state, count in counts.items() if count or state == "finished")
        return f"Runs({text})" if self.folder is None else f"Runs({str(self.folder)!r}: {text})"

    def where(self, **settings: Any) -> "Runs":
        """Return the runs whose complete settings, defaults included, have these values.

        Several values mean any of them: `runs.where(method=["erm", "medic++"], lr=0.06)`. `split` and `images` match
        only what the user wrote. Runs whose settings cannot be read are left out.
        """
        named = ((known_setting(setting_name(name)), value) for name, value in settings.items())
        values = {name: alternatives(name, value) for name, value in named}

        def keep(runs: Iterable[Run]) -> tuple[Run, ...]:
            readable = (run for run in runs if _has_settings(run))
            return tuple(run for run in readable if all(has_value(run, *item) for item in values.items()))

        return Runs(keep(self.finished), keep(self.unfinished), keep(self.failed), keep(self.damaged))

    def table(self, metrics: Sequence[str] | str = (), selection: str = "validation", columns: str = "auto") -> Table:
        """Return a table with one row per combination of method and user settings.

        Args:
            metrics: Keys in `results.jsonl`, such as `["acc", "oscr"]` (default: accuracy, H-score and OSCR).
            selection: Rule that selects one evaluation per run: `validation`, `evaluation`, `domainbed`, `last`,
                `leave-one-out` or `oracle`.
            columns: `target` domains, `source` domains, or `auto`.
        """
        keys = [metrics] if isinstance(metrics, str) else metrics
        chosen = find_metrics(keys, DEFAULT, self.finished) if keys else DEFAULT
        return tabulate(self.finished, selection, chosen, columns, self.missing)

    def compare(
        self,
        base: str,
        row: str,
        metrics: Sequence[str] | str = (),
        selection: str = "validation",
        columns: str = "auto",
    ) -> "Comparison":
        """Return the difference `row` minus `base` in each metric, with its 95% interval and p-value.

        Runs are paired by column and seed. The p-value is from a paired t-test over columns or, if there is only one
        column, over its seeds. The result prints as text, and has `differences`, `notes` and `to_frame()`.

        Args:
            base: Method or row label in `table()`.
            row: Method or row label in `table()`.
            metrics: As in `table()`.
            selection: As in `table()`.
            columns: As in `table()`.
        """
        from medic.results.comparison import compare  # deferred, because it imports scipy

        return compare(self.table(metrics, selection, columns), base, row)

    def to_frame(self, every: bool = False) -> Any:
        """Return the finished runs as a pandas data frame.

        Each row is a run, with the evaluation selected by source validation. With `every`, each row is an evaluation,
        and the `selected` column marks the selected ones. The `learned` column is False for runs that learned nothing.
        Columns are named after settings (`lr`) and after the paths of measurements (`target/acc`). `lr/now` is the
        scheduled learning rate at the evaluation.
        """
        return make_run_frame(self.finished, every)

    def _repr_html_(self) -> str:
        """Return the HTML shown in a notebook: a table, or the reason why none can be made."""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        try:
            return self.table()._repr_html_() + notes
        except MedicError as error:
            return f"<p>{html.escape(str(error))}</p>{notes}"

    @property
    def missing(self) -> list[Run]:
        """Unfinished and failed runs whose settings can be read."""
        return [run for run in (*self.unfinished, *self.failed) if _has_settings(run)]

    def notes(self) -> Iterator[str]:
        """Yield a line about each run, or group of runs, that a table of finished runs leaves out."""
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
            yield f"{run.path} is left out: {run.damage}"


def _has_settings(run: Run) -> bool:
    """Return whether an unfinished run's settings can be read; the run may have failed before writing them."""
    try:
        return bool(row_settings(run)) and all(isinstance(name, str) for name in (run.method, *run.targets))
    except Exception:
        return False


def load_runs(*folders: Path | str) -> Runs:
    """Return the runs in one or more folders. A folder can also be a run directory.

    Use `where` to select runs by their settings: `load_runs("runs").where(lr=0.06)`.
    """
    for folder in folders:
        if not isinstance(folder, Path | str):
            raise MedicError(f"each folder must be a path, as in load_runs('a', 'b'), got {type(folder).__name__}")
    return find_runs(map(Path, folders))


def find_runs(folders: Iterable[Path]) -> Runs:
    """Read all runs in the given folders. A folder can also be a run directory."""
    places = list(folders)
    alone = len(places) == 1 and not is_run(places[0])
    return sort_runs(run_directories(places), places[0] if alone else None)


def open_runs(path: Path | str) -> Run | Runs:
    """Open a finished run directory, or all runs in a folder."""
    folder = Path(path)
    if is_run(folder) or not folder.is_dir():
        check_run(folder)
        return Run(folder)
    if (folder / DESCRIPTION).exists():
        raise MedicError(f"{folder} is a model, not a run: pass the run directory")
    return find_runs([folder])


@garbage_collection_paused()  # makes large tables about 10% faster
def sort_runs(paths: Iterable[Path], folder: Path | None = None) -> Runs:
    """Read run directories and group the runs by state; `folder` is their common folder, if any."""
    runs = [Run(path, unfinished=True) for path in paths]
    damaged = [run for run in runs if run.damage]
    others = [run for run in runs if not run.damage]
    finished = [run for run in others if run.done]
    failed = [run for run in others if run.failure]
    unfinished = [run for run in others if not run.done and not run.failure]
    return Runs(tuple(finished), tuple(unfinished), tuple(failed), tuple(damaged), folder)


@garbage_collection_paused()
def list_runs(folders: Iterable[Path]) -> Sequence[Run]:
    """Return the runs in the given folders, sorted by the time of their last write."""
    runs = [Run(path, unfinished=True) for path in run_directories(folders)]
    return sorted(runs, key=lambda run: (run.written, run.path))


def run_directories(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the run directories in the given folders. A folder can also be a run directory."""
    for folder in folders:
        if not folder.is_dir():
            problem = "is a file" if folder.exists() else "does not exist"
            raise MedicError(f"folder {folder} {problem}: pass the --output of a training command, or a run in it")
        if is_run(folder):
            yield folder
            continue
        for path in sorted(folder.iterdir()):
            if _may_be_run(path):
                yield path


def _may_be_run(path: Path) -> bool:
    """Return whether a folder contains files of a run, or cannot be opened."""
    try:
        return is_run(path) or any((path / name).exists() for name in (ERROR, DONE))
    except OSError:
        return True
