"""`python -m medic`, and the script `medic`."""

import os
import signal
import sys


def run() -> int:
    """Run the command line as this process. Ctrl-C during its imports ends the process without a traceback."""
    if interrupted := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from medic.cli import main

    if interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
