"""Give damaged and hostile inputs to medic, and count what happens.

    python -m benchmarks.fuzz images --count 20000 --seconds 600

Prints a table, and a line for each kind of fault with the options that repeat it; exits with 1 if there is any.
"""

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.fuzz import archives, bits, harness, images, model, predictions, requests, runs
from benchmarks.fuzz.harness import fuzz

MODULES = (images, archives, runs, bits, model, predictions, requests)
DOORS = {door.name: door for door in (*(module.DOOR for module in MODULES), images.DECODER)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("doors", nargs="*", default=list(DOORS), metavar="DOOR", help=f"{', '.join(DOORS)} [all]")
    parser.add_argument("--start", type=int, default=0, metavar="NUMBER", help="first input, to go on with a run [0]")
    parser.add_argument("--count", type=int, help="inputs of each door [as many as SECURITY.md reports]")
    parser.add_argument("--seconds", type=float, default=1800, help="time for each door [1800]")
    parser.add_argument(
        "--limit",
        type=float,
        default=harness.SECONDS,
        help="seconds after which an input hangs; more on a busy machine [10]",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="try one input only")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="a folder for the runs that are damaged, to repeat a fault in"
    )
    arguments = parser.parse_args()
    logging.getLogger("medic").addHandler(logging.NullHandler())
    harness.SECONDS = arguments.limit
    faults = 0
    for name in arguments.doors:
        door = DOORS[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.keep or Path(temporary)).absolute() / name
            first, count = arguments.start, arguments.count or door.count
            tried = range(first, first + count) if arguments.only is None else [arguments.only]
            summary = fuzz(door, folder, tried, arguments.seed, arguments.seconds)
        print("\n".join(summary.lines(arguments.seed)), flush=True)
        faults += len(summary.faults)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
