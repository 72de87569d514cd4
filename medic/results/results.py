"""Runs read for tables: settings and records only, without torch."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from medic.config.settings import identity, read_yaml
from medic.errors import MedicError, counted
from medic.evaluation.learning import learning_failure
from medic.evaluation.selection import select, without_target
from medic.runs.environment import commits, read_environment
from medic.runs.layout import ASKED, CONFIG, DONE, ENVIRONMENT, ERROR, RECORDS
from medic.runs.seal import Damaged, read_seal
from medic.utils.memory import garbage_collection_paused

_SETTINGS = ', "args": {'
"""Start of the settings in a record. They are its last part, and the same in every record of a run."""
_BY_DOMAIN = ', "targets": {'
"""Start of the metrics by domain in a record, which tables do not read."""
_ACCURACIES = re.compile(r', "env\d+_(in|out)_acc": [^{]')
"""Start of DomainBed's accuracies, which follow the metrics by domain."""
_VARIED = frozenset({"target", "sources", "seed", "trial_seed", "hparams_seed"})
"""Settings in which the runs of one row may differ."""

_CONSEQUENCES = {"split": ("known", "unknown", "partial"), "images": ("batch_size",)}
"""Settings that complete settings replace by others."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run with its complete settings and its evaluations in order; an unfinished run has no evaluations."""

    path: Path
    settings: Mapping[str, Any]
    """Every setting that changes the result."""
    asked: Mapping[str, Any]
    """The settings that the person gave."""
    records: tuple[Mapping[str, Any], ...] = ()
    """The evaluations; a table needs no metrics by domain, so they may be left out."""
    environments: tuple[int, ...] = ()
    """Indices of the target domains, as in DomainBed's keys `env0_in_acc`."""
    seconds: float = 0.0
    """The duration of the run."""

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings["method"])

    @property
    def targets(self) -> tuple[str, ...]:
        """The target domains."""
        return tuple(self.settings["target"])

    @property
    def draw(self) -> int:
        """The number of the hyperparameter draw; 0 for the defaults."""
        return int(self.settings.get("hparams_seed") or 0)

    @property
    def trial(self) -> tuple[int, int | None]:
        """The seed and the seed of the validation split. A table averages over trials."""
        return self.settings["seed"], self.settings["trial_seed"]

    @cached_property
    def selected(self) -> int:
        """Position of the record that source validation selects."""
        return select([without_target(record, self.environments) for record in self.records])

    @property
    def learned(self) -> bool:
        """Whether the selected model does better than chance on held-out source images."""
        return not learning_failure(self.records, self.selected)

    @cached_property
    def given(self) -> Mapping[str, Any]:
        """The settings that may tell this run from the runs of other rows, with the values that the person gave.

        Weights always count, by their hash.
        """
        replaced = _CONSEQUENCES.keys() & self.asked
        asked = {**{name: self.asked[key] for key in replaced for name in _CONSEQUENCES[key]}, **self.asked}
        # `settings` has none that only matter on one machine.
        given = {name: asked[name] for name in (self.settings.keys() & asked) - replaced}
        given["weights"] = self.setting("weights")
        return {name: value for name, value in given.items() if name not in _VARIED}

    def setting(self, name: str) -> Any:
        """Return the complete value of a setting for comparison with other runs."""
        if name == "weights":
            return None if (found := self.environment.get("weights")) is None else str(found)[:8]
        value = self.settings.get(name)
        if name == "partial":  # the classes of each source differ between targets
            return bool(value)
        if name == "soup":  # and so do the runs of a soup
            return None if value is None else len(value)
        return None if value == "none" else value

    def agrees(self, other: "RunResult", names: Iterable[str]) -> bool:
        """Whether two runs have the same values of some settings, complete or as they were given.

        Runs with different numbers of source domains complete the same given settings differently.
        """
        return all(
            self.setting(name) == other.setting(name) or self.given.get(name) == other.given.get(name) for name in names
        )

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """What the results depend on besides the settings; empty if it cannot be read.

        The commit of a run that was resumed at other commits lists all of them: `a+b`.
        """
        found = read_environment(self.path)
        return {**found, "commit": commits(found)} if found else {}


@dataclass(frozen=True)
class Collection:
    """The runs of some folders: finished ones, and the directories of all others."""

    results: tuple[RunResult, ...]
    unfinished: tuple[Path, ...] = ()
    failed: Mapping[Path, str] = field(default_factory=dict)
    """Runs whose last attempt failed, with the reason."""
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """Runs that cannot be read, with the reason."""

    @property
    def missing(self) -> list[RunResult]:
        """The unfinished and failed runs whose settings are known, without records."""
        return [run for path in (*self.unfinished, *self.failed) if (run := _read_unfinished(path)) is not None]

    def notes(self) -> Iterator[str]:
        """Yield a line about everything that a table of the finished runs leaves out."""
        if self.unfinished:
            first = "" if len(self.unfinished) == 1 else "for example "
            yield (
                f"{runs_are(len(self.unfinished))} unfinished ({first}{self.unfinished[0]}): "
                "rerun the same command to resume"
            )
        for path, reason in list(self.failed.items())[:3]:
            yield f"{path} failed: {reason}"
        if len(self.failed) > 3:
            yield f"{len(self.failed) - 3} more runs failed"
        for path, reason in self.damaged.items():
            way = f"; delete {path} and run it again" if reason.endswith("damaged") else ""
            yield f"{path} is left out: {reason}{way}"


def short(value: Any) -> str:
    """Shorten a hash, a commit or several joined by `+` to 12 characters each, keeping suffixes like `-dirty`."""
    parts = (part.partition("-") for part in str(value).split("+"))
    return "+".join(f"{head[:12]}{dash}{rest}" for head, dash, rest in parts)


def learned_nothing(results: Iterable[RunResult]) -> str:
    """Return `2 runs learned nothing (for example PATH)`, or an empty string if all runs learned."""
    paths = [result.path for result in results if not result.learned]
    first = "" if len(paths) == 1 else "for example "
    return f"{counted(len(paths), 'run')} learned nothing ({first}{paths[0]})" if paths else ""


def runs_are(count: int, which: str = "") -> str:
    """Return `1 run is` or `2 runs are`, with `which` before the verb."""
    return f"{counted(count, 'run')}{which} {'is' if count == 1 else 'are'}"


def collect(folders: Iterable[Path], by_domain: bool = False) -> Collection:
    """Read every run in some folders, with their metrics by domain on request. A folder may also be a run itself."""
    return read_runs(run_directories(folders), by_domain)


@garbage_collection_paused()  # a table of many runs takes a tenth less time
def read_runs(paths: Iterable[Path], by_domain: bool = False) -> Collection:
    """Read the runs in some run directories."""
    results, unfinished, failed, damaged = [], [], {}, {}
    for path in paths:
        if (reason := unreadable(path)) is not None:
            damaged[path] = reason
        elif (path / DONE).exists():
            try:
                results.append(read_result(path, by_domain))
            except MedicError as error:
                damaged[path] = str(error)
        elif (path / ERROR).exists():
            failed[path] = str(read_error(path).get("reason", "the reason cannot be read"))
        else:
            unfinished.append(path)
    return Collection(tuple(results), tuple(unfinished), failed, damaged)


def read_result(path: Path, by_domain: bool = False) -> RunResult:
    """Read a finished run, with or without its metrics by domain."""
    with naming_damage():
        if (path / RECORDS).exists() and not (path / RECORDS).is_file():  # a pipe may have no end
            raise Damaged(RECORDS)
        content, seal = (path / RECORDS).read_bytes(), read_seal(path)
        seal.check(path / RECORDS, content)
        seal.check(path / ENVIRONMENT)
        first, *others = content.decode().rstrip("\n").split("\n")
        shortened = str if by_domain else without_domains
        record = json.loads(shortened(first))
        measured = ",".join(shortened(line.partition(_SETTINGS)[0]) + "}" for line in others)
        records = (record, *json.loads(f"[{measured}]"))
        settings, asked, domains = record["hparams"], record.pop("asked"), tuple(record["args"]["test_envs"])
        return RunResult(path, settings, asked, records, domains, seal.seconds)


@contextmanager
def naming_damage() -> Iterator[None]:
    """Raise what goes wrong with the files of a run as an error that names the file."""
    try:
        yield
    except OSError as error:
        raise MedicError(f"its {Path(error.filename or RECORDS).name} cannot be read: {error.strerror}") from error
    except MedicError:
        raise
    except Exception as error:  # whatever the file of a stranger leads to, whose checksum may be right
        raise Damaged(RECORDS) from error


def without_domains(line: str) -> str:
    """Remove the metrics by domain from a record: a table spends most of its time on parsing."""
    start = line.find(_BY_DOMAIN)
    rest = _ACCURACIES.search(line, start) if start >= 0 else None
    return line if rest is None else line[:start] + line[rest.start() :]


def _read_unfinished(path: Path) -> RunResult | None:
    """Return a run without records, or None if its settings cannot be read."""
    try:
        settings = identity(read_yaml(path / CONFIG))
        result = RunResult(path, settings, read_yaml(path / ASKED))
        hash((result.draw, result.trial, tuple(result.given)))
        names = [settings["method"], settings["dataset"], *settings["target"], *settings["sources"]]
        return result if all(isinstance(name, str) for name in names) and isinstance(settings["seed"], int) else None
    except Exception:  # it failed before it started, or is not a run, or its settings are damaged
        return None


def run_directories(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the directories of runs in some folders; a folder may also be a run itself."""
    for folder in folders:
        if not folder.is_dir():
            problem = "is a file" if folder.exists() else "does not exist"
            raise MedicError(f"folder {folder} {problem}: give the --output of a training command, or a run in it")
        if (folder / CONFIG).exists():  # a run directory
            yield folder
            continue
        for path in sorted(folder.iterdir()):
            if unreadable(path) or any((path / name).exists() for name in (CONFIG, ERROR, DONE)):
                yield path


def unreadable(path: Path) -> str | None:
    """Return the reason why a folder cannot be opened, or None."""
    try:
        (path / DONE).exists()
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def read_error(path: Path) -> dict[str, Any]:
    """Return the content of a run's error.json; empty if no attempt failed or it cannot be read."""
    try:
        found = json.loads((path / ERROR).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
