"""The progress of training: a bar on a terminal, a line every few seconds elsewhere."""

import logging
import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from medic.logs import console

logger = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """Shows iterations, loss, speed and remaining time; nothing where messages are not shown."""

    def __init__(self, title: str, start: int, iterations: int) -> None:
        self._title, self._start, self._iterations = title, start, iterations
        self._began = self._last = time.monotonic()
        self._bar: Bar | None = None
        if logger.isEnabledFor(logging.INFO) and console().is_terminal:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            status = TextColumn("loss {task.fields[loss]}  {task.fields[rate]}  left")
            self._bar = Bar(*columns, status, TimeRemainingColumn(), console=console())
            self._task = self._bar.add_task(title, total=iterations, completed=start, loss="–", rate="–")
            self._bar.start()

    def advance(self, iteration: int, loss: float | None) -> None:
        """Show that an iteration has finished."""
        now = time.monotonic()
        if self._bar is None and now - self._last < EVERY:
            return
        rate = (iteration - self._start) / (now - self._began)
        shown, speed = "–" if loss is None else f"{loss:.3f}", _speed(rate)
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, loss=shown, rate=speed)
            return
        self._last = now
        left = (self._iterations - iteration) / rate
        logger.info("%s  %d/%d  loss %s  %s  left %.0f s", self._title, iteration, self._iterations, shown, speed, left)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


def _speed(rate: float) -> str:
    """Format iterations per second or, below one, seconds per iteration."""
    return f"{rate:.1f} it/s" if rate >= 1 else f"{1 / rate:.1f} s/it"
