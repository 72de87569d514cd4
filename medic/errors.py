"""Errors that are part of the interface: one line that names the value and the fix."""

import difflib
import errno
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from shlex import quote

from medic._version import DISTRIBUTION


class MedicError(ValueError):
    """A user's mistake. The command line prints it as one line and exits with 2."""


class BusyError(MedicError):
    """Another process is executing the same run."""


class DiskFullError(MedicError):
    """The disk is full. Files written earlier are intact."""


class TrainingError(RuntimeError):
    """Training cannot continue, for example with a loss that is NaN. The last checkpoint is kept; exit code 1."""


class OutOfMemoryError(TrainingError):
    """The memory of this machine or of its GPU is too small."""


_SHORTAGE = re.compile(r"out of memory|can(?:'t|not) allocate memory|ALLOC_FAILED|failed to map segment", re.IGNORECASE)
_REQUEST = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raise an `OutOfMemoryError` that names the options to lower, if memory runs out inside."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        chain: list[BaseException] = [error]  # others may have taken a lack of memory for a mistake
        while (cause := _cause(chain[-1])) is not None and cause not in chain:
            chain.append(cause)
        shortage = next(filter(is_shortage, chain), None)
        if shortage is None:
            raise
        request = _REQUEST.search(str(shortage))
        reason = f" (tried to allocate {request[1]})" if request else ""
        way = "lower --batch-size or, in a sweep, --jobs; --store stream keeps images on disk"
        raise OutOfMemoryError(f"out of memory{reason}: {way}") from error


def _cause(error: BaseException) -> BaseException | None:
    """Return what led to an error; nothing if it was raised `from None`."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_shortage(error: BaseException) -> bool:
    """Whether Python, the system or torch has no memory left; torch raises a `RuntimeError` on a CPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError | ImportError) and _SHORTAGE.search(str(error)) is not None
    )


def unwritten(what: str, place: object, error: OSError) -> MedicError:
    """Return the error for something that cannot be written to a place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"disk full: could not write {place}. Free some space and rerun the same command to resume"
        )
    return MedicError(f"{what} {place} cannot be written: {error.strerror or error}")


def unread(place: object, error: OSError) -> MedicError:
    """Return the error for a file that exists and cannot be read. It may be whole, so nothing is to be deleted."""
    way = ""
    if isinstance(error, PermissionError):
        way = f": make it readable with `chmod u+r {quote(str(place))}`, or ask its owner"
    return MedicError(f"{place} cannot be read ({error.strerror or error}){way}")


def warn(message: str) -> None:
    """Warn at the line outside this package that caused the warning."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "medic":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def lacking(what: str, extra: str) -> MedicError:
    """Return the error for a missing package that one of our extras installs."""
    return MedicError(f"{what}: pip install '{DISTRIBUTION}[{extra}]'")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without credentials."""
    return without_credentials((str(error).splitlines() or [type(error).__name__])[0])


def without_credentials(text: str) -> str:
    """Remove the user names and passwords of addresses in a text, also of malformed ones."""
    return re.sub(r"(\w:[/\\]+|\w:(?=[^\s/\\@:]+:))[^\s/\\]\S*@", r"\1", text)


def one_line(text: str) -> str:
    """Return a text as one line, with its control characters and undecodable bytes escaped."""
    line = " ".join(map(str.strip, text.splitlines()))
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)


def counted(number: int, noun: str) -> str:
    """Format a count: `1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


MEANT = {"gpu": "cuda", "accuracy": "acc", "top1": "acc", "auc": "auroc"}
"""Choices that people call by another name, although its letters may be closer to a third: gpu to cpu."""
LONGEST_NAME = 200
"""Characters up to which a name is compared with the choices, which takes longer the longer it is."""
FEW = 4
"""The number of choices up to which all are listed beside the closest."""


def closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `name` probably means, or None; a number is never a misspelling of another."""
    if str(name).isdecimal() or len(str(name)) > LONGEST_NAME:
        return None
    several, folded = list(choices), str(name).lower()
    stems = {choice.lower().partition("-")[0]: choice for choice in reversed(several)}  # oracle of oracle-10
    by_folded = {**stems, **{choice.lower(): choice for choice in several}}
    if (meant := MEANT.get(folded)) in by_folded:
        return by_folded[str(meant)]
    # A short name with another first letter is another name: IRM is not ERM.
    likely = by_folded if len(folded) > 3 else [one for one in by_folded if one[:1] == folded[:1]]
    matches = difflib.get_close_matches(folded, likely, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def respelled(name: str, choices: Iterable[str]) -> str:
    """Return the choice that differs from `name` only in upper and lower case or in p for +, or `name` itself."""
    choices = list(choices)
    same = [choice for choice in choices if _plain(choice) == _plain(name)]
    return same[0] if name not in choices and len(same) == 1 else name


def _plain(name: str) -> str:
    """Return a name in lower case, and as file names have it: `medicpp` for MEDIC++."""
    return name.lower().replace("+", "p")


def check_choice(kind: str, name: str, choices: Iterable[str], where: str = "") -> str:
    """Return `name` if it is one of `choices`, otherwise raise an error with the closest one, or how to find all.

    `where` names the owner of the choices: `of method 'vrex'`.
    """
    choices = list(choices)
    if name in choices:
        return name
    nearest = closest(name, choices)
    hints = [] if nearest is None else [f"did you mean {nearest!r}?"]
    if nearest is None or len(choices) <= FEW:
        too_many = kind == "setting"  # more than 60
        hints.append("`medic train --help` lists them" if too_many else f"choose from {', '.join(choices)}")
    raise MedicError(f"unknown {kind} {name!r}{where and ' '}{where}, {' '.join(hints)}")
