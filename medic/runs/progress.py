"""Training progress: a bar in a terminal or notebook, otherwise a log line every few seconds."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from medic.utils.logs import console
from medic.utils.notebook import NotebookBar, in_notebook

logger = logging.getLogger(__name__)

FIRST = 2.0
"""Seconds until the first line, which shows the remaining time."""
EVERY = 10.0
"""Seconds between lines."""

Pause = Literal["evaluating", "validating", "averaging"]
"""States in which a run is not training. SWAD validates to find the segments to average."""


class Progress:
    """Display of state, iteration, loss, speed and remaining time; hidden if info messages are off.

    The clock counts training only and stops inside `pause`. `pauses` is the expected number of pauses in each state.
    """

    def __init__(self, title: str, start: int, iterations: int, pauses: Mapping[Pause, int] | None = None) -> None:
        self._title, self._iteration, self._iterations = title, start, iterations
        self._pauses: dict[Pause, int] = dict(pauses or {})
        self._lasted: dict[Pause, float] = {}
        """Duration in seconds of the last pause in each state."""
        self._began, self._paused = time.monotonic(), 0.0
        self._base: tuple[int, float] = (start, 0.0)
        """Iteration and training time at which the speed measurement starts."""
        self._warm = False
        self._rate: float | None = None
        self._printed, self._last = False, self._began
        self._bar: Bar | None = None
        self._notebook: NotebookBar | None = None
        if logger.isEnabledFor(logging.INFO) and in_notebook():
            self._notebook = NotebookBar(title, start, iterations)
        elif logger.isEnabledFor(logging.INFO) and console().is_terminal:
            whole = Column(no_wrap=True)
            self._bar = Bar(
                TextColumn("{task.description}", markup=False, table_column=whole),
                BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=40)),
                MofNCompleteColumn(table_column=whole),
                TextColumn("{task.fields[status]}", markup=False, table_column=whole),
                console=console(),
                expand=True,
            )
            self._task = self._bar.add_task(title, total=iterations, completed=start, status="training")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the bar and show the training speed next to it."""
        if self._notebook is not None:
            self._notebook.update(self._iteration, self.speed or "", last=True)
        if self._bar is not None:
            self._bar.update(self._task, status=self.speed or "")
            self._bar.stop()

    @property
    def training(self) -> float:
        """Seconds of training so far."""
        return time.monotonic() - self._began - self._paused

    @property
    def speed(self) -> str | None:
        """Speed in iterations per second or, if below one, seconds per iteration; None before the first iteration."""
        if self._rate is None:
            return None
        return f"{self._rate:.1f} it/s" if self._rate >= 1 else f"{1 / self._rate:.1f} s/it"

    def advance(self, iteration: int, loss: float | None) -> None:
        """Show that an iteration has finished."""
        now = self.training
        if iteration > self._base[0]:
            self._rate = (iteration - self._base[0]) / max(now - self._base[1], 1e-9)
        if not self._warm:  # the first iteration compiles and allocates, so it does not count
            self._base, self._warm = (iteration, now), True
        self._iteration = iteration
        self._show(f"training  loss {'–' if loss is None else f'{loss:.3f}'}  {self.speed or '–'}")

    @contextmanager
    def pause(self, state: Pause) -> Iterator[None]:
        """Stop the training clock inside the context, and show the state."""
        began = time.monotonic()
        self._show(state)
        try:
            yield
        finally:
            self._lasted[state] = time.monotonic() - began
            self._paused += self._lasted[state]
            self._pauses[state] = self._pauses.get(state, 1) - 1

    def _show(self, status: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._iteration, status=f"{status}  left {self._left()}")
            return
        if self._notebook is not None:
            self._notebook.update(self._iteration, f"{status}  left {self._left()}")
            return
        now = time.monotonic()
        if now - self._last >= (EVERY if self._printed else FIRST):
            self._last, self._printed = now, True
            place = f"{self._title}  {self._iteration}/{self._iterations}"
            logger.info("%s  %s  left %s", place, status, self._left())

    def _left(self) -> str:
        """Return the remaining time, assuming that pauses last as long as before; `>` marks a lower bound."""
        if self._rate is None:
            return "–"
        seconds = (self._iterations - self._iteration) / self._rate
        seconds += sum(number * self._lasted.get(state, 0.0) for state, number in self._pauses.items())
        return f"{'' if self._pauses.keys() <= self._lasted.keys() else '> '}{duration(seconds)}"


def duration(seconds: float) -> str:
    """Format a duration in seconds as `3 h 20 min`, `4 min 10 s` or `7 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
