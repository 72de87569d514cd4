"""Exceptions, and messages for common errors. Each message is one line that states the value and the fix."""

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
    """Invalid input. The command line prints the message on one line and exits with code 2."""


class BusyError(MedicError):
    """Another process is training the same run."""


class DiskFullError(MedicError):
    """The disk is full. Files written earlier remain intact."""


class TrainingError(RuntimeError):
    """Training cannot continue, for example because the loss is NaN. The last checkpoint is kept; exit code 1."""


class OutOfMemoryError(TrainingError):
    """The machine or its GPU ran out of memory."""


_SHORTAGE = re.compile(r"out of memory|can(?:'t|not) allocate memory|ALLOC_FAILED|failed to map segment", re.IGNORECASE)
_REQUEST = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)


@contextmanager
def memory_checked() -> Iterator[None]:
    """Turn an out-of-memory failure inside the context into an `OutOfMemoryError` that says which options to lower."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        chain: list[BaseException] = [error]  # other handlers may have wrapped an out-of-memory failure
        while (cause := _cause(chain[-1])) is not None and cause not in chain:
            chain.append(cause)
        shortage = next(filter(is_shortage, chain), None)
        if shortage is None:
            raise
        request = _REQUEST.search(str(shortage))
        reason = f" (tried to allocate {request[1]})" if request else ""
        way = "lower --batch-size (in a sweep, --jobs), or use --store stream to leave images on disk"
        raise OutOfMemoryError(f"out of memory{reason}: {way}") from error


def _cause(error: BaseException) -> BaseException | None:
    """Return the exception that caused an error, or None if it was raised `from None`."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_shortage(error: BaseException) -> bool:
    """Return whether an error means that memory ran out. On a CPU, torch raises a plain `RuntimeError`."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError | ImportError) and _SHORTAGE.search(str(error)) is not None
    )


def unwritten(what: str, place: object, error: OSError) -> MedicError:
    """Return the error for a failed write: `what` names the content, `place` its path."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"disk full: could not write {place}. Free some space and rerun the same command to resume"
        )
    return MedicError(f"{what} {place} cannot be written: {error.strerror or error}")


def unread(place: object, error: OSError) -> MedicError:
    """Return the error for an unreadable file. It may be intact, so the message does not advise deleting it."""
    way = ""
    if isinstance(error, PermissionError):
        way = f": make it readable with `chmod u+r {quote(str(place))}`, or ask its owner"
    return MedicError(f"{place} cannot be read ({error.strerror or error}){way}")


def warn(message: str) -> None:
    """Issue a warning that points to the calling line outside this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "medic":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def lacking(what: str, extra: str) -> MedicError:
    """Return the error for a missing optional dependency, which an extra of this package installs."""
    return MedicError(f"{what}: pip install '{DISTRIBUTION}[{extra}]'")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without credentials and terminal colours."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return without_credentials(re.sub(r"\x1b\[[\d;]*m", "", line))


def without_credentials(text: str) -> str:
    """Remove user names and passwords from URLs in a text, including malformed URLs."""
    return re.sub(r"(\w:[/\\]+|\w:(?=[^\s/\\@:]+:))[^\s/\\]\S*@", r"\1", text)


def one_line(text: str) -> str:
    """Join a text into one line, and escape control characters and undecodable bytes."""
    line = " ".join(map(str.strip, text.splitlines()))
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


MEANT = {"gpu": "cuda", "accuracy": "acc", "top1": "acc", "auc": "auroc"}
"""Common synonyms of choices, which spelling alone would match wrongly: gpu is closer to cpu than to cuda."""
LONGEST_NAME = 200
"""Maximum length of a name that is compared with the choices. Comparing longer names is slow."""
FEW = 4
"""Maximum number of choices to list in full after a suggestion."""


def closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to `name`, or None. Numbers are never treated as misspellings."""
    if str(name).isdecimal() or len(str(name)) > LONGEST_NAME:
        return None
    several, folded = list(choices), str(name).lower()
    stems = {
        choice.lower().partition("-")[0]: choice for choice in reversed(several)
    }  # so that oracle matches oracle-10
    by_folded = {**stems, **{choice.lower(): choice for choice in several}}
    if (meant := MEANT.get(folded)) in by_folded:
        return by_folded[str(meant)]
    # A short name with a different first letter is a different name: IRM is not a misspelling of ERM.
    likely = by_folded if len(folded) > 3 else [one for one in by_folded if one[:1] == folded[:1]]
    matches = difflib.get_close_matches(folded, likely, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def respelled(name: str, choices: Iterable[str]) -> str:
    """Return the choice that matches `name`, ignoring case and treating `p` as `+`, or `name` itself."""
    choices = list(choices)
    same = [choice for choice in choices if _plain(choice) == _plain(name)]
    return same[0] if name not in choices and len(same) == 1 else name


def _plain(name: str) -> str:
    """Return a name in lower case with `p` for `+`: `medicpp` for MEDIC++."""
    return name.lower().replace("+", "p")


def check_choice(kind: str, name: str, choices: Iterable[str], where: str = "") -> str:
    """Return `name` if it is one of `choices`, otherwise raise an error that suggests or lists the choices.

    `where` is appended to the name in the error: `of method 'vrex'`.
    """
    choices = list(choices)
    if name in choices:
        return name
    nearest = closest(name, choices)
    hints = [] if nearest is None else [f"did you mean {nearest!r}?"]
    if nearest is None or len(choices) <= FEW:
        too_many = kind == "setting"  # too many to list
        listed = f"{'choose from' if nearest is None else 'Available:'} {', '.join(choices)}"
        hints.append("see `medic train --help` for all settings" if too_many else listed)
    raise MedicError(f"unknown {kind} {name!r}{where and ' '}{where}: {' '.join(hints)}")
