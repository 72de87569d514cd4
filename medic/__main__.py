"""`python -m medic`, and the script `medic`."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def run() -> int:
    """Run the command line as this process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored
        signal.signal(signal.SIGINT, _interrupt)
    from medic.cli import main

    return main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end the process during an import: Python and libraries may swallow it there."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):  # a closed standard error
                os.write(2, b"medic: stopped\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
