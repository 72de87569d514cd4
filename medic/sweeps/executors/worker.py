"""A process that does one run after the other: settings come in as lines of JSON, and what became of them goes out."""

import ctypes
import json
import os
import signal
import sys
from typing import Any

from medic.runs.train import train
from medic.sweeps.executors.base import Event, attempt


def main() -> None:
    """Do runs until there are no more, or until asked to stop."""
    _end_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not come between our lines
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        sys.argv[:] = asked["command"]  # a run notes what it was started by
        print(json.dumps(Event(asked["name"], "started")._asdict()), file=answers)
        event = attempt(asked["name"], asked["settings"], lambda config: train(config, quiet=True))
        print(json.dumps(event._asdict()), file=answers)


def _end_with_parent() -> None:
    """Be asked to stop when the sweep is gone, so that the next one does not find its runs taken; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # asked to stop: a checkpoint is written
        sys.exit(0)
