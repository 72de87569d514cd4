"""The state of every run in some folders, without torch and without parsing more than one record of each."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medic.config.settings import load_yaml
from medic.deploy.layout import DESCRIPTION
from medic.errors import MedicError
from medic.results.results import naming_damage, read_error, read_result, run_directories, unreadable, without_domains
from medic.runs.layout import CHECKPOINT, CONFIG, DONE, ENVIRONMENT, ERROR, ITERATION, LOCK, RECORDS
from medic.runs.seal import Damaged, read_seal
from medic.utils.files import is_locked
from medic.utils.memory import garbage_collection_paused

State = Literal["finished", "learned nothing", "running", "unfinished", "failed", "damaged"]
"""A run in the state `learned nothing` is finished too."""

_WANTED: Mapping[str, tuple[type, ...]] = {
    "method": (str,),
    "target": (str, list),
    "seed": (int,),
    "iterations": (int,),
    "soup": (list,),
}
"""Settings that a list of runs shows, with their types."""


@dataclass(frozen=True)
class Listed:
    """A run of a list. What cannot be read is None or empty."""

    path: Path
    state: State
    written: float
    """Seconds since 1970 at which the run was last written."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Some of its settings: method, target, seed and iterations, and the runs of a soup."""
    iteration: int | None = None
    """The iteration of the last checkpoint."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The metrics of a finished run on the target, of its selected evaluation."""
    reason: str = ""
    """Why the run failed or is damaged."""


@garbage_collection_paused()
def list_runs(folders: Iterable[Path]) -> list[Listed]:
    """Return the runs in some folders, in the order in which they were last written."""
    return sorted(map(_read, run_directories(folders)), key=lambda run: (run.written, run.path))


def _read(path: Path) -> Listed:
    if (reason := unreadable(path)) is not None:
        return Listed(path, "damaged", 0.0, reason=reason)
    if written := _modified(path / DONE):
        try:
            record = _selected_record(path)
            metrics = {key: value for key, value in record["target"].items() if type(value) in (int, float)}
            state: State = "finished" if record["learned"] else "learned nothing"
            return Listed(path, state, written, _wanted(record["hparams"]), record["iteration"], metrics)
        except MedicError as error:
            return Listed(path, "damaged", written, _settings(path), reason=str(error))
    written = max(_modified(path / name) for name in (CONFIG, RECORDS, ERROR, CHECKPOINT))
    reason = str(read_error(path).get("reason", "the reason cannot be read")) if (path / ERROR).exists() else ""
    state = "running" if is_locked(path / LOCK) else "failed" if reason else "unfinished"
    return Listed(path, state, written, _settings(path), _iteration(path), reason=reason if state == "failed" else "")


def _selected_record(path: Path) -> Mapping[str, Any]:
    """Return the selected evaluation of a finished run, without its metrics by domain; `learned` is added to it."""
    with naming_damage():
        if not (path / DESCRIPTION).exists():
            result = read_result(path)
            return {**result.records[result.selected], "hparams": result.settings, "learned": result.learned}
        content = {name: _content(path / name) for name in (RECORDS, DESCRIPTION, ENVIRONMENT)}
        seal = read_seal(path)
        for name, data in content.items():
            seal.check(path / name, data)
        provenance = json.loads(content[DESCRIPTION])["provenance"]
        record = json.loads(without_domains(content[RECORDS].decode().split("\n")[provenance["record"]]))
        if not isinstance(record["hparams"], dict) or not isinstance(record["target"], dict):
            raise Damaged(RECORDS)
        return {**record, "iteration": int(record["iteration"]), "learned": provenance.get("learned", True)}


def _content(path: Path) -> bytes:
    """Return the content of a file; a pipe may have no end."""
    if path.exists() and not path.is_file():
        raise Damaged(path.name)
    return path.read_bytes()


def _wanted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a list shows, as far as they have their types."""
    return {name: settings[name] for name, kinds in _WANTED.items() if isinstance(settings.get(name), kinds)}


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings of an unfinished run that a list shows, without reading the others, which takes longer."""
    try:
        lines, kept, wanted = _content(path / CONFIG).decode().splitlines(), [], False
        for line in lines:
            if line[:1].isalpha():
                wanted = line.partition(":")[0] in _WANTED
            kept += [line] if wanted else []
        return _wanted(load_yaml("\n".join(kept)))
    except Exception:  # it failed before it started, or its settings are damaged
        return {}


def _iteration(path: Path) -> int | None:
    """Return the iteration of the checkpoint, 0 if there is none, or None if it is unknown."""
    try:
        return int(_content(path / ITERATION))
    except FileNotFoundError:
        return None if (path / CHECKPOINT).exists() else 0
    except (OSError, ValueError):  # a `MedicError` is a ValueError
        return None


def _modified(path: Path) -> float:
    """Return when a file was written, in seconds since 1970, or 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
