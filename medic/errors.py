"""Errors that are part of the interface: one line that names the value and the way out."""

import difflib
import errno
import math
import re
import sys
import warnings
from collections.abc import Iterable


class MedicError(ValueError):
    """A mistake in what was asked for. The command line prints it as one line and exits with 2."""


class BusyError(MedicError):
    """Another process is at the same run."""


class DiskFullError(MedicError):
    """There is no room to write; what was written before is whole."""


class TrainingError(RuntimeError):
    """Training cannot go on (a loss that is not a number). The last good checkpoint is kept; exit code 1."""


def unwritten(what: str, place: object, error: OSError) -> MedicError:
    """The error to raise where something cannot be written in a place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"the disk of {place} is full: make room, and the same command goes on")
    return MedicError(f"{what} {place} cannot be written: {error.strerror or error}")


def warn(message: str) -> None:
    """Warn at the line that called this package, however deep inside it the reason is."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "medic":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def lacking(what: str, extra: str) -> MedicError:
    """The error to raise where something needs a package that an extra of ours installs."""
    clone = f"pip install -c constraints.txt -e '.[{extra}]'"
    return MedicError(f"{what}: pip install 'medic[{extra}]', or in a clone {clone}")


def first_line(error: Exception) -> str:
    """What an error says, in one line that holds no secret."""
    return without_credentials((str(error).splitlines() or [type(error).__name__])[0])


def without_credentials(text: str) -> str:
    """A text, of someone else's perhaps, without the names and passwords of the addresses in it."""
    return re.sub(r"(?<=://)\S*@", "", text)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was probably meant to be, or None; a number is no misspelling of another."""
    if str(name).isdecimal():
        return None
    several = list(choices)
    stems = {choice.lower().partition("-")[0]: choice for choice in reversed(several)}  # oracle of oracle-10
    by_folded = {**stems, **{choice.lower(): choice for choice in several}}
    matches = difflib.get_close_matches(str(name).lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def check_range(
    owner: str,
    least: float = 0,
    most: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    **numbers: float,
) -> None:
    """Refuse numbers by name that are not from `least` to `most`, or `above` the one and `below` the other."""
    for name, value in numbers.items():
        low = value > least if above else value >= least
        high = value < most if below else value <= most
        if not (low and high and math.isfinite(value)):
            limits = [f"above {least:g}" if above else f"{least:g} or more"]
            limits += [] if most == math.inf else [f"below {most:g}" if below else f"{most:g} or less"]
            raise MedicError(f"{name} of {owner} is {value:g}: give a number, {' and '.join(limits)}")


FEW = 4
"""How many choices are all named, beside the nearest."""


def check_choice(kind: str, name: str, choices: Iterable[str], where: str = "") -> str:
    """Return `name` if it is one of `choices`, otherwise raise with the nearest one, or all, named.

    `where` says whose choices these are: `of method 'vrex'`.
    """
    choices = list(choices)
    if name in choices:
        return name
    nearest = closest(name, choices)
    all_of_them = f"choose from {', '.join(choices)}"
    if nearest is None:
        hint = all_of_them
    else:  # of a few all are shown: gpu is near to cpu by its letters alone
        hint = f"did you mean {nearest!r}?" + (f" {all_of_them}" if len(choices) <= FEW else "")
    raise MedicError(f"unknown {kind} {name!r}{where and ' '}{where}, {hint}")
