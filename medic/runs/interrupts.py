"""Requests to stop, which a run notices between iterations so that it can save a checkpoint first."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Self

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds that an iteration or evaluation has to end after a SIGTERM."""


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and has saved a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Interrupts:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP is only recorded in `received`; a second stops at once.

    The first is acknowledged at once by a line that says what is waited for. A signal that the process ignores stays
    ignored: `nohup` is how a run outlives its terminal.

    With `late`, a SIGTERM or SIGHUP is answered within seconds even if an iteration takes minutes: what is in progress
    is left after `PATIENCE` seconds by a `Stopped` with the message that `late` returns. The main thread raises it
    between two operators of torch. If it is inside a long one, such as a backward pass, the process ends after as many
    seconds again.
    """

    def __init__(self, awaited: str, late: Callable[[], str] | None = None) -> None:
        self.received: int | None = None
        self._awaited, self._late = awaited, late
        self.writing = threading.Lock()
        """Held while a checkpoint or a result is written, which is not left."""
        self._ended, self._overdue, self._leaving = threading.Event(), False, False
        self._wakeup: int | None = None
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in this thread alone
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
            if self._late is not None:
                self._watch(self._late)
        return self

    def _watch(self, late: Callable[[], str]) -> None:
        """Let a thread learn of signals at once; the main thread may be inside an operator of torch for a minute."""
        listening, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._watching = threading.Thread(target=self._hurry, args=(listening, late), daemon=True)
        self._watching.start()

    def __exit__(self, *_: object) -> None:
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup_before)
        with self.writing:  # no signal is sent once its handler is gone
            self._ended.set()
        if self._wakeup is not None:
            os.close(self._wakeup)  # for which the thread may wait
            # A thread that outlives us would free the run's tensors, perhaps while Python ends, which aborts it.
            self._watching.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._overdue and self._late is not None and not self._leaving:
            self._leaving = True
            raise Stopped(self._late(), self.received or number)
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        # A closed terminal, or a signal in the middle of another message, must not end the run before its checkpoint.
        with suppress(OSError, RuntimeError):
            again = "Ctrl-C again" if number == signal.SIGINT else "another signal"
            logger.warning("%s; %s stops at once", self._awaited, again)

    def _hurry(self, listening: int, late: Callable[[], str]) -> None:
        """Wait for a SIGTERM or SIGHUP, then make the main thread leave what is in progress, or end the process."""
        number = b"\0"
        while number and number[0] not in (signal.SIGTERM, signal.SIGHUP):  # who presses Ctrl-C can press it again
            number = os.read(listening, 1)
        if not self._ended.wait(PATIENCE):
            self._leave(number[0], late)
        self._ended.wait()
        os.close(listening)

    def _leave(self, number: int, late: Callable[[], str]) -> None:
        with self.writing:
            if self._ended.is_set():
                return
            self._overdue = True
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        if self._ended.wait(PATIENCE) or self._leaving:
            return
        with self.writing:
            with suppress(OSError):
                os.write(2, f"medic: {late()}\n".encode(errors="backslashreplace"))
            os._exit(128 + number)
