"""Log messages for the user, from the `medic` logger to standard error.

Modules log with `logging.getLogger(__name__)`. The command line and `medic.train` show messages at level INFO and
above. Other programs that import medic configure logging themselves.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from medic.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> "Console":
    """Return the standard error console, which log messages and progress bars share."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


class _Handler(logging.Handler):
    """Prints each message on one line, above any progress bar. Warnings are marked as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "medic: note: " if record.levelno >= logging.WARNING else ""
        console().print(mark + one_line(self.format(record)))


@contextmanager
def log_output(quiet: bool = False) -> Iterator[None]:
    """Show messages at level INFO and above, or only warnings with `quiet`. Nested contexts can only be quieter."""
    logger = logging.getLogger("medic")
    before, handler = logger.level, None if logger.handlers else _Handler()
    if handler is not None:
        logger.addHandler(handler)
    if quiet or handler is not None:
        logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        if handler is not None:
            logger.removeHandler(handler)
