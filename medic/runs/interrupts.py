"""Stop requests (signals). A run handles them between iterations, so that it can save a checkpoint first."""

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
"""Seconds that the current iteration or evaluation may continue after a SIGTERM."""


class Stopped(KeyboardInterrupt):
    """Raised when a run stops on request, after saving a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Interrupts:
    """Context manager that records the first Ctrl-C, SIGTERM or SIGHUP in `received`; a second one stops at once.

    The first signal logs a line with `awaited`, the event that the process waits for. Signals that the process already
    ignores stay ignored, so `nohup` keeps working.

    With `late`, the process responds to SIGTERM and SIGHUP within seconds, even if an iteration takes minutes. After
    `PATIENCE` seconds, the main thread raises `Stopped` with the message that `late` returns. It can do so only between
    two torch operators. If a long operator such as a backward pass is still running after another `PATIENCE` seconds,
    the process exits.
    """

    def __init__(self, awaited: str, late: Callable[[], str] | None = None) -> None:
        self.received: int | None = None
        self._awaited, self._late = awaited, late
        self.writing = threading.Lock()
        """Lock held while a checkpoint or result is written, which must not be interrupted."""
        self._ended, self._overdue, self._leaving = threading.Event(), False, False
        self._wakeup: int | None = None
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
            if self._late is not None:
                self._watch(self._late)
        return self

    def _watch(self, late: Callable[[], str]) -> None:
        """Start a thread that receives signals at once: the main thread may be inside a torch operator for a minute."""
        listening, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._watching = threading.Thread(target=self._hurry, args=(listening, late), daemon=True)
        self._watching.start()

    def __exit__(self, *_: object) -> None:
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup_before)
        with self.writing:  # the thread must not send a signal after its handler is gone
            self._ended.set()
        if self._wakeup is not None:
            os.close(self._wakeup)  # ends the thread's read
            # A thread that outlives this context would free the run's tensors, which can abort interpreter shutdown.
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
        # Logging fails if the terminal is closed or another message is being written: the run must still checkpoint.
        with suppress(OSError, RuntimeError):
            again = "press Ctrl-C again" if number == signal.SIGINT else "send another signal"
            logger.warning("%s; %s to stop immediately", self._awaited, again)

    def _hurry(self, listening: int, late: Callable[[], str]) -> None:
        """Wait for SIGTERM or SIGHUP, then interrupt the main thread or, if that takes too long, exit the process."""
        number = b"\0"
        while number and number[0] not in (signal.SIGTERM, signal.SIGHUP):  # after Ctrl-C, the user can press it again
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
