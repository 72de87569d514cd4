"""Measure the overhead of many runs.

Benchmarks: a table of 5,000 finished runs, a sweep of 200 short runs, and a sweep that is killed.

python -m benchmarks.experiments table           # time of `medic table` and `medic runs` over 5,000 runs
python -m benchmarks.experiments sweep           # 200 runs of about a second: the time that the sweep adds
python -m benchmarks.experiments kill            # a sweep killed at 20 random moments, against an undisturbed one
"""

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from medic.config.files import read_settings, to_json
from medic.results.runs import find_runs
from medic.runs.seal import make_seal


def main() -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "sweep", "kill"])
    parser.add_argument("--count", type=int, help="runs, or kills (5000, 200, 20)")
    parser.add_argument("--iterations", type=int, default=2, help="of a run of the sweep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "table":
            table(Path(folder), arguments.count or 5000)
        elif arguments.what == "sweep":
            sweep(Path(folder), arguments.count or 200, arguments.iterations)
        else:
            kill(Path(folder), arguments.count or 20)


def medic(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "medic", *arguments]


def train(*arguments: str) -> None:
    """Run a command that trains; its exit code is 1 because runs this short learn nothing."""
    done = subprocess.run(medic(*arguments), capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)


def table(folder: Path, count: int) -> None:
    """Copy the records of a real run into many runs, and time `medic table`."""
    one = folder / "one"
    short = ["--iterations", "14", "--evaluate-every", "2", "--batch-size", "2", "--track", "none"]
    train("train", "--target", "street", "--output", str(one), *short)
    (made,) = (path for path in one.iterdir() if path.is_dir())
    records = [json.loads(line) for line in (made / "results.jsonl").read_text().splitlines()]
    runs, config = folder / "runs", read_settings(made / "config.json")
    domains = ("handwritten", "printed", "blended", "street")
    for number in range(count):
        path = runs / f"{number:016x}"
        path.mkdir(parents=True)
        target, seed, method = domains[number % 4], number // 4 % 5, f"method-{number // 20}"
        for record in records:
            record["args"]["test_envs"] = [domains.index(target)]
        changed = {"target": [target], "seed": seed, "trial_seed": seed, "method": method}
        (path / "config.json").write_text(to_json({**config, **changed}))
        (path / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        for name in ("environment.json", "settings.json", "model.json"):
            shutil.copy(made / name, path / name)
        (path / "done").write_text(make_seal(path, 1.0))
    size = sum(path.stat().st_size for path in runs.glob("*/results.jsonl")) / 1e6
    for command in ("table", "runs"):
        began = time.perf_counter()
        done = subprocess.run(medic(command, str(runs)), check=True, capture_output=True, text=True)
        seconds, lines = time.perf_counter() - began, len(done.stdout.splitlines())
        print(
            f"{command} of {count} runs of {len(records)} evaluations ({size:.0f} MB): {seconds:.1f} s, {lines} lines"
        )


def sweep(folder: Path, count: int, iterations: int) -> None:
    """Compare the time of a sweep with the times that its runs report."""
    began = time.perf_counter()
    train(
        *("sweep", *small(folder / "images"), "--target", "d", "--method", "erm", "--span", f"seed=0..{count - 1}"),
        *("--iterations", str(iterations), "--evaluate-every", str(iterations), "--batch-size", "48"),
        *("--output", str(folder / "runs"), "--jobs", "2"),
    )
    seconds = time.perf_counter() - began
    spent = sum(result.seconds for result in find_runs([folder / "runs"]).finished) / 2
    print(
        f"{count} runs in {seconds:.1f} s; the runs alone take {spent:.1f} s on each of two processes: "
        f"+ {seconds / spent - 1:.1%}"
    )


def small(folder: Path) -> list[str]:
    """Write four domains of three classes with ten images of noise each; return the options of a fast run on them."""
    noise = np.random.default_rng(0)
    for domain, name, number in itertools.product("abcd", "xyz", range(10)):
        path = folder / domain / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    known = ["--known", "x", "y", "--backbone", "convnet", "--image-size", "32", "--augment", "digits"]
    return ["--dataset", "folder", "--root", str(folder), *known, "--track", "none"]


def kill(folder: Path, count: int) -> None:
    """Compare the metrics of a sweep that was killed `count` times with those of an undisturbed one."""
    command = [
        *("sweep", *small(folder / "images"), "--span", "target=each", "method=erm,medic++", "seed=0..1"),
        *("--iterations", "150", "--batch-size", "8", "--jobs", "2"),
    ]
    quiet, disturbed = folder / "quiet", folder / "disturbed"
    train(*command, "--output", str(quiet))
    draws, working = random.Random(0), 0
    for _ in range(count):
        process = subprocess.Popen(medic(*command, "--output", str(disturbed)), stderr=subprocess.DEVNULL)
        time.sleep(draws.uniform(1, 12))
        working += process.poll() is None
        process.send_signal(draws.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        process.wait()
    train(*command, "--output", str(disturbed))
    metrics = [
        {r.path.name: r.records[-1]["target"] for r in find_runs([path]).finished} for path in (quiet, disturbed)
    ]
    print(
        f"{len(metrics[0])} runs, killed {working} times while running: "
        f"the results are {'identical' if metrics[0] == metrics[1] else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    main()
