"""How far a sweep is: one table that moves on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from medic.experiments.schedule import Schedule

SHOWN = 8
"""Runs that are listed of each kind."""


class Overview(Protocol):
    """Is shown a schedule whenever it may have changed."""

    def show(self, schedule: "Schedule", slots: int) -> None:
        """Show where all runs are."""

    def close(self) -> None:
        """The sweep has ended, one way or another."""


class Silent:
    """For a caller that wants no output."""

    def show(self, schedule: "Schedule", slots: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Moving:
    """A table on a terminal."""

    def __init__(self) -> None:
        self._live = Live(console=Console(file=sys.stderr), refresh_per_second=4)
        self._live.start()

    def show(self, schedule: "Schedule", slots: int) -> None:
        """Draw it again."""
        now = time.monotonic()
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, began in list(schedule.running.items())[:SHOWN]:
            table.add_row("running", schedule.titles[name], f"{now - began:.0f} s")
        for state, events in (("failed", schedule.failed), ("again", schedule.again)):
            for name, event in list(events.items())[-SHOWN:]:
                table.add_row(state, schedule.titles[name], Text(event.reason, style="red"))
        self._live.update(Group(Text(summary(schedule, slots)), table))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


class Lines:
    """A line when something has ended, but not more than one every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self._every, self._last, self._said = every, 0.0, ""

    def show(self, schedule: "Schedule", slots: int) -> None:
        """Say how far it is, if that has changed and it is time to."""
        now, ended = time.monotonic(), not (schedule.running or schedule.missing)
        line = summary(schedule, slots)
        if line != self._said and (ended or now - self._last >= self._every):
            print(line, file=sys.stderr, flush=True)
            self._last, self._said = now, line

    def close(self) -> None:
        """Nothing is open."""


def make_overview(quiet: bool) -> Overview:
    """What fits where the output goes."""
    return Silent() if quiet else Moving() if sys.stderr.isatty() else Lines()


def summary(schedule: "Schedule", slots: int) -> str:
    """Done, running, failed, tried again, and the time left by what the runs so far have taken."""
    done, waiting, failed = len(schedule.there) + len(schedule.done), schedule.missing, len(schedule.failed)
    line = f"{done} of {len(schedule.jobs)} done, {len(schedule.running)} running, {waiting} to do, {failed} failed"
    if schedule.again:
        line += f", {len(schedule.again)} tried again"
    if not schedule.done or not (waiting or schedule.running):
        return line
    mean = sum(schedule.done.values()) / len(schedule.done)
    left = mean * (waiting + 0.5 * len(schedule.running)) / slots
    return f"{line}; {duration(left)} left"


def duration(seconds: float) -> str:
    """As people say it: `3 h 20 min`, `4 min 10 s`, `7 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
