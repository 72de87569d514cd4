"""Sweep progress: a live table in a terminal, otherwise an occasional log line."""

import logging
import time
from contextlib import nullcontext
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from medic.utils.logs import console

MAX_LISTED = 8
"""Maximum number of runs listed per state."""

logger = logging.getLogger(__name__)


class SweepState(Protocol):
    """State of a sweep: runs in progress with their start times, and failures with their reasons, keyed by run name."""

    running: dict[str, float]
    failed: dict[str, str]
    retried: dict[str, str]
    titles: dict[str, str]

    @property
    def ended(self) -> bool:
        """Whether no run is in progress or waiting."""

    def summary(self, slots: int) -> str:
        """Return the state in one line."""


class Overview:
    """Display of a sweep's state; `live` is the context manager of the live table."""

    def __init__(self, quiet: bool = False, every: float = 5.0) -> None:
        """Log at most one line every `every` seconds."""
        terminal = console().is_terminal and not quiet
        self.live = Live(console=console(), refresh_per_second=4) if terminal else nullcontext()
        self._every, self._last, self._line = every, 0.0, ""

    def show(self, schedule: SweepState, slots: int) -> None:
        """Show the state of a sweep that executes `slots` runs at a time."""
        line, now = schedule.summary(slots), time.monotonic()
        if isinstance(self.live, Live):
            self.live.update(Group(Text(line), _table(schedule, now)))
        elif line != self._line and (schedule.ended or now - self._last >= self._every):
            logger.info(line)
            self._last, self._line = now, line


def _table(schedule: SweepState, now: float) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, began in list(schedule.running.items())[:MAX_LISTED]:
        table.add_row("running", schedule.titles[name], f"{now - began:.0f} s")
    for state, runs in (("failed", schedule.failed), ("retried", schedule.retried)):
        for name, reason in list(runs.items())[-MAX_LISTED:]:
            table.add_row(state, schedule.titles[name], Text(reason, style="red"))
    return table
