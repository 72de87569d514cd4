"""Single flipped bits in the files of a run: each is noticed, by a message that names the file, or has no effect."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.fuzz.damage import flip
from benchmarks.fuzz.harness import Door, Fault, command
from benchmarks.fuzz.small_run import copy, make_runs, only_run, settings

TIMES = ("step_time", "mem_gb")
"""Parts of a record that no two runs share."""


def uses(run: Path) -> dict[str, Callable[[], Any]]:
    """Return everything that a person can do with a finished run, by name."""
    import medic

    return {
        "table": lambda: command("table", str(run), "--format", "json")[:2],
        "evaluate": lambda: command("evaluate", str(run), "--json")[:2],
        "metrics": lambda: medic.Run(run).metrics,
        "records": lambda: [{**record, **dict.fromkeys(TIMES)} for record in medic.Run(run).records],
        "settings": lambda: medic.Run(run).settings,
        "predictions": lambda: {name: array.tobytes() for name, array in medic.Run(run).predictions.items()},
        "weights": lambda: {
            name: tensor.numpy().tobytes() for name, tensor in medic.Run(run).model.state_dict().items()
        },
        "preprocessing": lambda: medic.Run(run).preprocessing,
        "threshold": lambda: medic.Run(run).description["threshold"],
    }


def digest(value: Any) -> str:
    """Return a short hash of a result."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def result(run: Path) -> dict[str, str]:
    """Return hashes of the metrics, weights and predictions of a finished run."""
    return {name: digest(uses(run)[name]()) for name in ("records", "predictions", "weights")}


def prepare(folder: Path) -> None:
    """Train a run, and keep hashes of what it gives."""
    make_runs(folder)
    whole = {name: digest(use()) for name, use in uses(copy(folder / "finished", folder / "output")).items()}
    (folder / "whole.json").write_text(json.dumps(whole))
    resumed = _resume(folder, copy(folder / "unfinished", folder / "output"))
    assert resumed.items() <= whole.items(), "a run that is interrupted differs from one that is not"


def _resume(folder: Path, run: Path) -> dict[str, str]:
    import medic

    medic.train(**settings(folder, output=str(run.parent)), quiet=True)
    return result(only_run(run.parent))


def attempt(folder: Path, draw: random.Random) -> bool:
    """Flip one bit of a finished or interrupted run, then use or resume it; return whether nothing changed."""
    whole = json.loads((folder / "whole.json").read_text())
    kind = draw.choice(("finished", "unfinished"))
    run = copy(folder / kind, folder / "output")
    file = draw.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size))
    file.write_bytes(flip(file.read_bytes(), draw.randrange(8 * file.stat().st_size)))
    if kind == "finished":
        done = {**uses(run), "train": lambda: _resume(folder, run)}
    else:
        done = {"resume": lambda: _resume(folder, run)}
    return all(list(_unchanged(done, whole, file.name)))


def _unchanged(done: dict[str, Callable[[], Any]], whole: dict[str, str], file: str) -> Iterator[bool]:
    """Yield whether each use gives what it gave before the bit was flipped."""
    from medic.errors import MedicError

    for name, use in done.items():
        try:
            value = use()
        except MedicError as error:
            if file not in str(error):
                raise Fault(f"{name} does not name {file}: {str(error)[-80:]}") from error
            yield False
            continue
        if isinstance(value, tuple) and value[0]:  # a command that printed an error or left the run out
            yield False
        elif isinstance(value, dict) and name in ("train", "resume"):
            if not value.items() <= whole.items():
                raise Fault(f"a flipped bit in {file} changes what {name} gives, without a word")
            yield True
        elif digest(value) != whole[name]:
            raise Fault(f"a flipped bit in {file} changes what {name} gives, without a word")
        else:
            yield True


DOOR = Door("bits", prepare, attempt, 1000)
