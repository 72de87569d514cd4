"""Requests to stop, which a run notices between iterations so that it can save a checkpoint first."""

import logging
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Self

logger = logging.getLogger(__name__)


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and has saved a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Interrupts:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP is only recorded in `received`; a second stops at once.

    The first is acknowledged at once by a line that says what is waited for. A signal that the process ignores stays
    ignored: `nohup` is how a run outlives its terminal.
    """

    def __init__(self, awaited: str) -> None:
        self.received: int | None = None
        self._awaited = awaited

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in this thread alone
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        # A closed terminal, or a signal in the middle of another message, must not end the run before its checkpoint.
        with suppress(OSError, RuntimeError):
            logger.warning("%s; Ctrl-C again stops at once", self._awaited)
