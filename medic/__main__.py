"""Entry point for `python -m medic` and the `medic` script."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def run() -> int:
    """Run the command line, and return its exit code."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # otherwise the parent process has chosen to ignore it
        signal.signal(signal.SIGINT, _interrupt)
    # Before torch is imported: waiting threads would otherwise spin, and slow down other processes on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from medic.cli import main

    return main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. During an import, exit instead, because libraries may swallow the exception."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):  # standard error may be closed
                os.write(2, b"medic: stopped\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
