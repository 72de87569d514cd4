"""Phrases about runs, shared by several modules."""

from collections.abc import Iterable
from typing import Any

from medic.errors import counted
from medic.runs.run import Run


def short(value: Any) -> str:
    """Shorten hashes or commits joined by `+` to 12 characters each, keeping suffixes such as `-dirty`."""
    parts = (part.partition("-") for part in str(value).split("+"))
    return "+".join(f"{head[:12]}{dash}{rest}" for head, dash, rest in parts)


def learned_nothing(runs: Iterable[Run]) -> str:
    """Return `2 runs learned nothing (for example PATH)`, or an empty string if all runs learned."""
    paths = [run.path for run in runs if not run.learned]
    first = "" if len(paths) == 1 else "for example "
    return f"{counted(len(paths), 'run')} learned nothing ({first}{paths[0]})" if paths else ""


def runs_are(count: int, which: str = "") -> str:
    """Return `1 run is` or `2 runs are`, with `which` inserted before the verb."""
    return f"{counted(count, 'run')}{which} {'is' if count == 1 else 'are'}"
