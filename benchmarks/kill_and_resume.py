"""Kill a run with SIGKILL at random moments, start it again, and compare its bytes with one that was left alone.

    python -m benchmarks.kill_and_resume --kills 24

Every trial is a run of its own, killed once, at a moment drawn evenly over the time a whole run takes (start-up,
training, evaluation, writing of the results), and then resumed. Prints a line per trial and exits with 1 if any
byte of `model.safetensors` or `predictions.npz` differs.
"""

import argparse
import hashlib
import itertools
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPARED = ("model.safetensors", "predictions.npz")


def command(output: Path, method: str) -> list[str]:
    settings = [
        "--target",
        "street",
        "--iterations",
        "24",
        "--batch-size",
        "4",
        "--evaluate-every",
        "8",
        "--checkpoint-every",
        "3",
    ]
    run = ["train", "--dataset", "digits", "--method", method, "--output", str(output), *settings]
    return [sys.executable, "-m", "medic", *run]


def fingerprint(output: Path) -> dict[str, str]:
    (run,) = output.iterdir()
    return {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in COMPARED}


def state(output: Path) -> str:
    """How far a killed run had come."""
    runs = list(output.iterdir()) if output.exists() else []
    if not runs:
        return "before its directory was made"
    there = [name for name in ("checkpoint/last.pt", "results.jsonl", *COMPARED, "done") if (runs[0] / name).exists()]
    return "with " + ", ".join(there) if there else "with an empty directory"


def run_whole(output: Path, method: str) -> float:
    began = time.monotonic()
    # Not `check`: so short a run learns nothing, which is exit code 1. `fingerprint` raises if it did not finish.
    subprocess.run(command(output, method), check=False, capture_output=True)
    return time.monotonic() - began


def kill_once(output: Path, method: str, after: float) -> str | None:
    """Start a run and kill it after some seconds; how far it had come, or None if it had ended before."""
    process = subprocess.Popen(command(output, method), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after)
    ended = process.poll() is not None
    process.kill()
    process.wait()
    return None if ended else state(output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--method", default="medic++")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, different = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        run_whole(root / "warm-up", arguments.method)
        seconds = run_whole(root / "whole", arguments.method)
        expected = fingerprint(root / "whole")
        print(f"a whole run takes {seconds:.1f} s; model {expected['model.safetensors'][:12]}", flush=True)
        killed = 0
        for trial in itertools.count():
            output = root / str(trial)
            after = draw.uniform(0, seconds)
            where = kill_once(output, arguments.method, after)
            if where is None:
                continue
            killed += 1
            run_whole(output, arguments.method)
            same = fingerprint(output) == expected
            different += not same
            verdict = "identical" if same else "DIFFERENT"
            print(f"{killed:3d}  killed after {after:5.2f} s {where}: {verdict}", flush=True)
            if killed == arguments.kills:
                break
    print(f"{arguments.kills - different} of {arguments.kills} identical")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
