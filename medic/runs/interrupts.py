"""Being asked to stop, noticed only between iterations so that a checkpoint can be written first."""

import signal
import threading
from types import FrameType


class Stopped(KeyboardInterrupt):
    """The run was asked to stop and has saved a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Interrupts:
    """While entered, Ctrl-C and SIGTERM are remembered in `received`; a second one stops at once.

    Outside of the main thread no signal can be caught: there another thread may `ask` instead.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "Interrupts":
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self) -> None:
        """Ask to stop, from any thread, as SIGTERM does."""
        self.received = self.received or signal.SIGTERM

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
