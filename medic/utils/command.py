"""The command that started this process, without secrets, as runs record it."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HIDDEN = "…"
_ADDRESS = re.compile(r"(?:[^/?#@]*@)?([\w.-]+|\[[\da-fA-F:.]+\])(?:[:/?#][^@]*)?")
"""The part of an address after `scheme://`, with the host as its group; no match if the host is ambiguous."""
_OPTION = re.compile(r"(--[\w-]+=)?(.*)", re.DOTALL)
_SCHEME = re.compile(r"[\w+.-]+")
_CREDENTIALS = re.compile(r":.*@", re.DOTALL)
_FILE = re.compile(r"/[^?#@]*")


def noted_command() -> list[str]:
    """Return the name of the program and its arguments, without the address of a database."""
    program, *arguments = sys.argv
    kept = [Path(program).name]
    for argument in arguments:
        if kept[-1] == "--storage":
            kept.append(HIDDEN)
        elif argument.startswith("--storage="):
            kept.append(f"--storage={HIDDEN}")
        else:
            kept.append(without_secrets(argument))
    return kept


@contextmanager
def secrets_hidden() -> Iterator[None]:
    """Replace the arguments of this process by those that runs record, for libraries that record the command."""
    real = sys.argv[:]
    sys.argv[:] = noted_command()
    try:
        yield
    finally:
        sys.argv[:] = real


def without_secrets(argument: str) -> str:
    """Return an argument whose address is shortened to scheme and host; anything after them may be a secret."""
    option, value = _OPTION.fullmatch(argument).groups("")  # type: ignore[union-attr]
    scheme, separator, address = value.partition("://")
    if not _SCHEME.fullmatch(scheme) or not separator:  # no address, or a malformed one
        return f"{option}{HIDDEN}" if _CREDENTIALS.search(value) else argument
    known = _ADDRESS.fullmatch(address)
    host = known[1] if known else ""
    if host == address or _FILE.fullmatch(address):
        return argument
    return f"{option}{scheme}://{host}{'/' if host else ''}{HIDDEN}"
