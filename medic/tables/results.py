"""Many finished runs, read for tables: what each was asked and what it measured, and nothing heavier."""

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from medic.errors import MedicError, counted
from medic.runs.settings import identity, read_yaml

ENVIRONMENT = "environment.json"
"""In a run's directory: what its numbers depend on besides its settings."""
ERROR = "error.json"
"""In a run's directory: why attempts failed, the last one first. It stays when a later one succeeds."""
SETTINGS = ', "args": {'
"""Where the settings of a run begin in its records, of which they are the end."""
DAMAGED = "its results.jsonl is damaged"
FOREIGN = "its results.jsonl is not of a run of medic"


@dataclass(frozen=True)
class Result:
    """A run: its complete settings, and every evaluation in order; none if it has not come to its end."""

    path: Path
    records: tuple[Mapping[str, Any], ...]
    asked: Mapping[str, Any] | None = None
    """The settings of a run without records."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that changes the result, except for what images and weights hold."""
        settings: Mapping[str, Any] = self.records[0]["hparams"] if self.asked is None else self.asked
        return settings

    @property
    def targets(self) -> tuple[str, ...]:
        """The domains that it was tested on."""
        return tuple(self.settings["target"])

    @property
    def environments(self) -> tuple[int, ...]:
        """The positions of these domains, by which DomainBed's keys name them."""
        return tuple(self.records[0]["args"]["test_envs"])

    @property
    def draw(self) -> int:
        """The number of the draw of its hyper-parameters; 0 for the defaults."""
        return int(self.settings.get("hparams_seed", 0))

    @property
    def trial(self) -> tuple[int, int | None]:
        """What distinguishes runs that are averaged: the seed, and that of the choice of validation images."""
        return self.settings["seed"], self.settings["trial_seed"]

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """What its numbers depend on besides: commit, versions, hardware, the hashes of images and weights.

        The commit of a run that was resumed at others is all of them, `a+b`.
        """
        try:
            found = json.loads((self.path / ENVIRONMENT).read_text())
            commits = dict.fromkeys(str(part.get("commit")) for part in (found, *found.get("resumed", ())))
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {**found, "commit": "+".join(commits)} if len(commits) > 1 else found

    def __hash__(self) -> int:
        return hash(self.path)


@dataclass(frozen=True)
class Collection:
    """What some folders hold: finished runs, and everything else by what it is."""

    results: tuple[Result, ...]
    unfinished: tuple[Path, ...]
    failed: Mapping[Path, str]
    """Why each failed, of runs whose last attempt did."""
    damaged: Mapping[Path, str]
    """What is wrong with each."""

    @property
    def missing(self) -> list[Result]:
        """The runs that are not finished or failed, as far as their settings are known, without records."""
        return [run for path in (*self.unfinished, *self.failed) if (run := _unfinished(path)) is not None]

    def notes(self) -> Iterator[str]:
        """What a reader of a table should know, a line each."""
        if self.unfinished:
            more = " for one" if len(self.unfinished) > 1 else ""
            left = f"{runs_are(len(self.unfinished))} not finished, {self.unfinished[0]}{more}"
            yield f"{left}; the command that started it goes on with it"
        for path, reason in list(self.failed.items())[:3]:
            yield f"{path} failed: {reason}"
        if len(self.failed) > 3:
            yield f"{len(self.failed) - 3} more failed"
        for path, reason in self.damaged.items():
            yield f"{path} is left out: {reason}{f'; delete {path} and run it again' if reason == DAMAGED else ''}"


def short(value: Any) -> str:
    """A hash, commit or version, for people: a commit keeps that files differed from it."""
    parts = (part.partition("-") for part in str(value).split("+"))
    return "+".join(f"{head[:12]}{dash}{rest}" for head, dash, rest in parts)


def runs_are(count: int, what: str = "") -> str:
    """`1 run is`, `2 runs are`, with `what` is said of them between."""
    return f"{counted(count, 'run')}{what} {'is' if count == 1 else 'are'}"


def collect(folders: Iterable[Path]) -> Collection:
    """Read every run below some folders, as sweeps write them: one directory each."""
    return read_runs(_run_directories(folders))


def read_runs(paths: Iterable[Path]) -> Collection:
    """Read the runs that have these directories."""
    results, unfinished, failed, damaged = [], [], {}, {}
    with garbage_kept():
        for path in paths:
            if (path / "done").exists():
                try:
                    results.append(read_result(path))
                except MedicError as error:
                    damaged[path] = str(error)
            elif (path / ERROR).exists():
                failed[path] = str(read_error(path).get("reason", "for a reason that cannot be read"))
            else:
                unfinished.append(path)
    return Collection(tuple(results), tuple(unfinished), failed, damaged)


def _unfinished(path: Path) -> Result | None:
    try:
        return Result(path, (), identity(read_yaml(path / "config.yaml")))
    except MedicError:  # it failed before it began, or is not ours
        return None


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Inside, no garbage is looked for, of which there is none among the many objects that records are."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_result(path: Path) -> Result:
    """Read one finished run."""
    try:
        text = (path / "results.jsonl").read_text()
    except OSError as error:
        raise MedicError(f"results.jsonl cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MedicError(DAMAGED) from error
    try:
        result = Result(path, tuple(_records(text.splitlines())))
        ours = {"args", "hparams"} <= result.records[0].keys()
        if ours:
            assert result.settings["method"]
            assert isinstance(result.environments, tuple)
            assert all(record["target"] and record["validation"] for record in result.records)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError) as error:
        raise MedicError(DAMAGED) from error
    if not ours:
        raise MedicError(FOREIGN)
    return result


def _records(lines: Sequence[str]) -> Sequence[dict[str, Any]]:
    """Every record, those after the first without the settings that repeat at their end: half of the work."""
    first, *others = lines
    record: dict[str, Any] = json.loads(first)
    settings = first[first.find(SETTINGS) :] if list(record)[-2:] == ["args", "hparams"] else "}"
    shortened = ",".join(f"{line.removesuffix(settings)}}}" if line.endswith(settings) else line for line in others)
    return [record, *json.loads(f"[{shortened}]")]  # at once, as names that repeat are read faster then


def _run_directories(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        if not folder.is_dir():
            wrong = "is a file" if folder.exists() else "does not exist"
            raise MedicError(f"folder {folder} {wrong}: give one that runs were written to, by --output")
        if (folder / "config.yaml").exists():  # a run itself
            yield folder
            continue
        for path in sorted(folder.iterdir()):
            if any((path / name).exists() for name in ("config.yaml", ERROR, "done")):
                yield path


def read_error(path: Path) -> dict[str, Any]:
    """What is known of the failed attempts at a run; nothing if there were none, or it cannot be read."""
    try:
        found = json.loads((path / ERROR).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
