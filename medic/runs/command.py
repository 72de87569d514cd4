"""The command that a process was started by, as runs note it: without secrets."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HIDDEN = "…"
_ADDRESS = re.compile(r"(?:[^/?#@]*@)?([\w.-]+|\[[\da-fA-F:.]+\])(?:[:/?#][^@]*)?")
"""What follows `scheme://`, with the host as its group; no match where it is unclear what the host is."""
_FILE = re.compile(r"/[^?#@]*")


def noted_command() -> list[str]:
    """The name of the program and its arguments; not that of a database, which is nothing but a secret."""
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
    """Inside, whoever looks for the command of this process finds it as runs note it."""
    real = sys.argv[:]
    sys.argv[:] = noted_command()
    try:
        yield
    finally:
        sys.argv[:] = real


def without_secrets(argument: str) -> str:
    """An argument of whose address, if it holds one, scheme and host are left, or a file: all else may be a secret."""
    before, found, address = argument.partition("://")
    known = _ADDRESS.fullmatch(address)
    host = known[1] if known else ""
    if not found or host == address or _FILE.fullmatch(address):
        return argument
    return f"{before}://{host}{'/' if host else ''}{HIDDEN}"
