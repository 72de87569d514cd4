"""How far a sweep is: one table that moves on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

SHOWN = 8
"""Runs that are listed of each kind."""


class State(NamedTuple):
    """Where the runs of a sweep are."""

    total: int
    done: int
    waiting: int
    running: Sequence[tuple[str, float]]
    """By their titles, and when each was started."""
    failed: Sequence[tuple[str, str]]
    """By their titles, and why."""
    again: Sequence[tuple[str, str]]
    """What failed and is tried again, and why it failed."""
    left: float | None
    """The seconds that are left, by what the runs so far have taken."""

    def __str__(self) -> str:
        """All of it in a line."""
        line = f"{self.done} of {self.total} done, {len(self.running)} running, {self.waiting} to do"
        line += f", {len(self.failed)} failed"
        if self.again:
            line += f", {len(self.again)} tried again"
        return line if self.left is None else f"{line}; {duration(self.left)} left"


class Overview(Protocol):
    """Is shown the state of a sweep whenever it may have changed."""

    def show(self, state: State) -> None:
        """Show where all runs are."""

    def close(self) -> None:
        """The sweep has ended, one way or another."""


class Silent:
    """For a caller that wants no output."""

    def show(self, state: State) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Moving:
    """A table on a terminal."""

    def __init__(self) -> None:
        self._live = Live(console=Console(file=sys.stderr, markup=False), refresh_per_second=4)
        self._live.start()

    def show(self, state: State) -> None:
        """Draw it again."""
        now = time.monotonic()
        table = Table(box=None, pad_edge=False, show_header=False)
        for title, began in state.running[:SHOWN]:
            table.add_row("running", title, f"{now - began:.0f} s")
        for kind, runs in (("failed", state.failed), ("again", state.again)):
            for title, reason in runs[-SHOWN:]:
                table.add_row(kind, title, Text(reason, style="red"))
        self._live.update(Group(Text(str(state)), table))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


class Lines:
    """A line when something has ended, but not more than one every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self._every, self._last, self._said = every, 0.0, ""

    def show(self, state: State) -> None:
        """Say how far it is, if that has changed and it is time to."""
        now, ended = time.monotonic(), not (state.running or state.waiting)
        line = str(state)
        if line != self._said and (ended or now - self._last >= self._every):
            print(line, file=sys.stderr, flush=True)
            self._last, self._said = now, line

    def close(self) -> None:
        """Nothing is open."""


def make_overview(quiet: bool) -> Overview:
    """What fits where the output goes."""
    return Silent() if quiet else Moving() if sys.stderr.isatty() else Lines()


def duration(seconds: float) -> str:
    """As people say it: `3 h 20 min`, `4 min 10 s`, `7 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
