"""Messages for the person at the terminal: the `medic` logger, shown on standard error.

Modules log with `logging.getLogger(__name__)`. A program that imports medic decides itself what is shown; the command
line and `medic.train` show messages of level INFO and above.
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
    """Return the console of standard error, which messages and progress bars share."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


class _Handler(logging.Handler):
    """Prints each message as one line, above a progress bar if one is shown; warnings are marked as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "medic: note: " if record.levelno >= logging.WARNING else ""
        console().print(mark + one_line(self.format(record)))


@contextmanager
def log_output(quiet: bool = False) -> Iterator[None]:
    """Show messages of INFO and above inside, or with `quiet` only warnings. Nested uses can only be quieter."""
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
