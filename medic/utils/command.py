"""The command line of this process, as runs record it, without secrets."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HIDDEN = "…"
_ADDRESS = re.compile(r"(?:[^/?#@]*@)?([\w.-]+|\[[\da-fA-F:.]+\])(?:[:/?#][^@]*)?")
"""Matches a URL after `scheme://` and captures the host. Does not match if the host is ambiguous."""
_OPTION = re.compile(r"(--[\w-]+=)?(.*)", re.DOTALL)
_SCHEME = re.compile(r"[\w+.-]+")
_CREDENTIALS = re.compile(r":.*@", re.DOTALL)
_FILE = re.compile(r"/[^?#@]*")


def noted_command() -> list[str]:
    """Return the program name and its arguments, without database URLs and other secrets."""
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
    """Hide secrets in `sys.argv` inside the context, for libraries that record the command line."""
    real = sys.argv[:]
    sys.argv[:] = noted_command()
    try:
        yield
    finally:
        sys.argv[:] = real


def without_secrets(argument: str) -> str:
    """Shorten a URL in an argument to scheme and host, because the rest may contain a secret."""
    option, value = _OPTION.fullmatch(argument).groups("")  # type: ignore[union-attr]
    scheme, separator, address = value.partition("://")
    if not _SCHEME.fullmatch(scheme) or not separator:  # not a URL, or malformed
        return f"{option}{HIDDEN}" if _CREDENTIALS.search(value) else argument
    known = _ADDRESS.fullmatch(address)
    host = known[1] if known else ""
    if host == address or _FILE.fullmatch(address):
        return argument
    return f"{option}{scheme}://{host}{'/' if host else ''}{HIDDEN}"
