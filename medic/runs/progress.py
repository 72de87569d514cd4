"""How far a run is: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter(Protocol):
    """Is told of every iteration and of what happens besides."""

    def advance(self, iteration: int, loss: float | None) -> None:
        """An iteration is done."""

    def say(self, line: str) -> None:
        """Something to be read."""

    def close(self) -> None:
        """The run has ended, one way or another."""


class Silent:
    """For a caller that wants no output."""

    def advance(self, iteration: int, loss: float | None) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A bar with loss, rate and time left."""

    def __init__(self, title: str, start: int, iterations: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]}  left"), TimeRemainingColumn(),
            console=Console(file=sys.stderr, markup=False),
        )  # fmt: skip
        self._task = self._progress.add_task(title, total=iterations, completed=start, loss="–", rate="–")
        self._start, self._began = start, time.monotonic()
        self._progress.start()

    def advance(self, iteration: int, loss: float | None) -> None:
        """Move the bar."""
        rate = (iteration - self._start) / (time.monotonic() - self._began)
        self._progress.update(self._task, completed=iteration, loss=_shown(loss), rate=_speed(rate))

    def say(self, line: str) -> None:
        """Print above the bar."""
        self._progress.console.print(line, highlight=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()


class Lines:
    """A line every few seconds."""

    def __init__(self, title: str, start: int, iterations: int, every: float = 10.0) -> None:
        self._title, self._start, self._iterations, self._every = title, start, iterations, every
        self._began = self._last = time.monotonic()

    def advance(self, iteration: int, loss: float | None) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        rate = (iteration - self._start) / (now - self._began)
        left = (self._iterations - iteration) / rate
        self.say(
            f"{self._title}  {iteration}/{self._iterations}  loss {_shown(loss)}  {_speed(rate)}  left {left:.0f} s"
        )

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""


def make_sayer(quiet: bool) -> Callable[[str], None]:
    """For a line before or after training, when there is no bar."""
    return (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))


def make_reporter(title: str, start: int, iterations: int, quiet: bool) -> Reporter:
    """What fits where the output goes."""
    if quiet:
        return Silent()
    return (Bar if sys.stderr.isatty() else Lines)(title, start, iterations)


class Downloads:
    """What a download says and how far it is: a bar on a terminal, a line every few seconds elsewhere."""

    def __enter__(self) -> "Downloads":
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, console=Console(file=sys.stderr, markup=False), disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task("download", total=None)
        self._last = time.monotonic()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, highlight=False)

    def advance(self, done: int, total: int | None) -> None:
        """Move the bar, or say now and then how far it is."""
        self._progress.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if self._progress.disable and now - self._last > 10:
            self._last = now
            self.say(f"{done / 1e6:.0f} MB" + ("" if total is None else f" of {total / 1e6:.0f}"))


def _speed(rate: float) -> str:
    """Iterations per second, or where it is less than one, seconds per iteration."""
    return f"{rate:.1f} it/s" if rate >= 1 else f"{1 / rate:.1f} s/it"


def _shown(loss: float | None) -> str:
    return "–" if loss is None else f"{loss:.3f}"
