"""Progress of a long computation: a bar in a terminal or notebook, otherwise a log line every few seconds."""

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
    """Display of status, progress, speed and remaining time; hidden if info messages are off.

    Progress is counted in `unit`, such as iterations (`it`) or images. The clock stops inside `pause`. `pauses` is the
    expected number of pauses in each state.
    """

    def __init__(
        self, title: str, start: int, total: int, pauses: Mapping[Pause, int] | None = None, unit: str = "it"
    ) -> None:
        self._title, self.completed, self._total, self._unit = title, start, total, unit
        self._pauses: dict[Pause, int] = dict(pauses or {})
        self.pause_seconds: dict[Pause, float] = {}
        """Duration in seconds of the last pause in each state."""
        self._began, self._paused = time.monotonic(), 0.0
        self._evaluated, self._to_evaluate = 0, 0
        self._base: tuple[int, float] = (start, 0.0)
        """Progress and training time at which the speed measurement starts."""
        self._warm = False
        self._rate: float | None = None
        self._printed, self._last = False, self._began
        self._bar: Bar | None = None
        self._notebook: NotebookBar | None = None
        if logger.isEnabledFor(logging.INFO) and in_notebook():
            self._notebook = NotebookBar(title, start, total)
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
            self._task = self._bar.add_task(title, total=total, completed=start, status="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the bar and show the training speed next to it."""
        if self._notebook is not None:
            self._notebook.update(self.completed, self.speed or "", last=True)
        if self._bar is not None:
            self._bar.update(self._task, status=self.speed or "")
            self._bar.stop()

    @property
    def training(self) -> float:
        """Seconds of training so far."""
        return time.monotonic() - self._began - self._paused

    @property
    def speed(self) -> str | None:
        """Speed in units per second or, if below one, seconds per unit; None before the first measurement."""
        if self._rate is None:
            return None
        return f"{self._rate:.1f} {self._unit}/s" if self._rate >= 1 else f"{1 / self._rate:.1f} s/{self._unit}"

    def advance(self, completed: int, status: str) -> None:
        """Show how much has been completed, and a status."""
        now = self.training
        if completed > self._base[0]:
            self._rate = (completed - self._base[0]) / max(now - self._base[1], 1e-9)
        if not self._warm:  # the first iteration compiles and allocates, so it does not count
            self._base, self._warm = (completed, now), True
        self.completed = completed
        self._show(f"{status}  {self.speed or '–'}")

    def count_images(self, images: int) -> None:
        """Show that more images have been evaluated in this pause."""
        self._evaluated += images
        total = f"/{self._to_evaluate:,}" if self._to_evaluate else ""
        self._show(f"{self._state}  {self._evaluated:,}{total} images")

    def expect(self, pauses: Mapping[Pause, int]) -> None:
        """Replace the expected number of pauses in each state."""
        self._pauses = dict(pauses)

    @contextmanager
    def pause(self, state: Pause, images: int = 0) -> Iterator[None]:
        """Stop the clock inside the context, and show the state; `images` is the number of images to evaluate."""
        began = time.monotonic()
        self._state, self._evaluated, self._to_evaluate = state, 0, images
        self._show(state)
        try:
            yield
        finally:
            self.pause_seconds[state] = time.monotonic() - began
            self._paused += self.pause_seconds[state]
            self._pauses[state] = self._pauses.get(state, 1) - 1

    def _show(self, status: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self.completed, status=f"{status}  left {self._left()}")
            return
        if self._notebook is not None:
            self._notebook.update(self.completed, f"{status}  left {self._left()}")
            return
        now = time.monotonic()
        if now - self._last >= (EVERY if self._printed else FIRST):
            self._last, self._printed = now, True
            place = f"{self._title}  {self.completed}/{self._total}"
            logger.info("%s  %s  left %s", place, status, self._left())

    def _left(self) -> str:
        """Return the remaining time, assuming that pauses last as long as before; `>` marks a lower bound."""
        if self._rate is None:
            return "–"
        seconds = (self._total - self.completed) / self._rate
        seconds += sum(number * self.pause_seconds.get(state, 0.0) for state, number in self._pauses.items())
        return f"{'' if self._pauses.keys() <= self.pause_seconds.keys() else '> '}{duration(seconds)}"


def duration(seconds: float) -> str:
    """Format a duration in seconds as `3 h 20 min`, `4 min 10 s` or `7 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
