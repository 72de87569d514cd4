"""The runs in some folders, without torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medic.errors import MedicError, counted
from medic.runs.layout import DONE, ERROR, is_run
from medic.runs.run import Run
from medic.utils.memory import garbage_collection_paused


@dataclass(frozen=True)
class Runs:
    """The runs of some folders by their state."""

    finished: tuple[Run, ...]
    unfinished: tuple[Run, ...] = ()
    failed: tuple[Run, ...] = ()
    """Runs whose last attempt failed."""
    damaged: tuple[Run, ...] = ()
    """Runs that cannot be read."""

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
        return bool(run.row_settings) and all(isinstance(name, str) for name in (run.method, *run.targets))
    except Exception:
        return False


def short(value: Any) -> str:
    """Shorten a hash, a commit or several joined by `+` to 12 characters each, keeping suffixes like `-dirty`."""
    parts = (part.partition("-") for part in str(value).split("+"))
    return "+".join(f"{head[:12]}{dash}{rest}" for head, dash, rest in parts)


def learned_nothing(runs: Iterable[Run]) -> str:
    """Return `2 runs learned nothing (for example PATH)`, or an empty string if all runs learned."""
    paths = [run.path for run in runs if not run.learned]
    first = "" if len(paths) == 1 else "for example "
    return f"{counted(len(paths), 'run')} learned nothing ({first}{paths[0]})" if paths else ""


def runs_are(count: int, which: str = "") -> str:
    """Return `1 run is` or `2 runs are`, with `which` before the verb."""
    return f"{counted(count, 'run')}{which} {'is' if count == 1 else 'are'}"


def find_runs(folders: Iterable[Path]) -> Runs:
    """Read every run in some folders. A folder may also be a run itself."""
    return sort_runs(run_directories(folders))


@garbage_collection_paused()  # a table of many runs takes a tenth less time
def sort_runs(paths: Iterable[Path]) -> Runs:
    """Read the runs in some run directories."""
    runs = [Run(path, unfinished=True) for path in paths]
    damaged = [run for run in runs if run.damage]
    others = [run for run in runs if not run.damage]
    finished = [run for run in others if run.done]
    failed = [run for run in others if run.failure]
    unfinished = [run for run in others if not run.done and not run.failure]
    return Runs(tuple(finished), tuple(unfinished), tuple(failed), tuple(damaged))


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
