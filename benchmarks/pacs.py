"""ERM and MEDIC++ on the real PACS images, with ImageNet weights: a table of Acc, H-score and OSCR.

    python -m benchmarks.pacs --root DIR_OF_PACS --weights lite0.safetensors --output DIR --jobs 4

Every method is run at two learning rates with seed 0, and at the one of better source validation with the other seeds.
With `--variants` MEDIC++ is also run with other ways of making tasks: those of a domain in different steps, classes by
a probe or at random. Runs that are there are not done again.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medic.evaluation.selection import select
from medic.reports.terminal import print_rows

RATES = (1.8e-3, 5.4e-3)
VARIANTS = {
    "step": ["--separate", "step"],
    "probe": ["--sampling", "probe"],
    "random": ["--sampling", "random"],
}
METRICS = {"Acc": "acc", "H-score": "hscore", "OSCR": "oscr"}


@dataclass(frozen=True)
class Job:
    """One run."""

    target: str
    label: str
    lr: float
    seed: int
    options: tuple[str, ...] = field(default=(), compare=False)

    def folder(self, output: Path) -> Path:
        name = self.label.replace(",", "").replace(" ", "-")
        return output / f"{self.target}-{name}-{self.lr:g}-{self.seed}"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder with PACS")
    parser.add_argument("--weights", required=True, help="weights of EfficientNet-Lite0 (imagenet_weights.py)")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--targets", nargs="+", default=["sketch", "cartoon"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--methods", nargs="+", default=["erm", "medic++"])
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=[], help="of medic++")
    arguments = parser.parse_args()
    first, *others = arguments.seeds

    def do(jobs: list[Job]) -> None:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda job: run(job, arguments), jobs))

    cells = list(itertools.product(arguments.targets, arguments.methods))
    do([Job(target, method, lr, first) for (target, method), lr in itertools.product(cells, RATES)])
    rate = {cell: better(arguments.output, *cell, first) for cell in cells}
    jobs = [Job(target, method, rate[target, method], seed) for target, method in cells for seed in others]
    jobs += [
        Job(target, f"medic++, {name}", rate[target, "medic++"], seed, tuple(VARIANTS[name]))
        for name, seed, target in itertools.product(arguments.variants, arguments.seeds, arguments.targets)
    ]
    do(jobs)
    done = [Job(target, method, rate[target, method], first) for target, method in cells] + jobs
    table(done, arguments.output)


def run(job: Job, arguments: argparse.Namespace) -> None:
    """Start `medic train` and wait for it."""
    folder = job.folder(arguments.output)
    if (folder / "seconds").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    method = job.label.partition(",")[0]
    command = [
        *(sys.executable, "-m", "medic", "train", "--dataset", "pacs", "--root", arguments.root),
        *("--target", job.target, "--method", method, "--lr", str(job.lr), "--seed", str(job.seed)),
        *("--backbone", "tf_efficientnet_lite0", "--weights", arguments.weights, *job.options),
        *("--iterations", str(arguments.iterations), "--output", str(folder)),
    ]
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    if not any(folder.glob("*/done")):  # the exit code is also 1 if a run finishes and has learned nothing
        sys.exit(f"{folder} is not finished: see its log")
    seconds = time.perf_counter() - began
    (folder / "seconds").write_text(f"{seconds:.1f}\n")
    print(f"{folder.name}: {seconds:.0f} s", flush=True)


def records(output: Path, job: Job) -> list[dict[str, Any]]:
    """What a run measured."""
    (path,) = job.folder(output).glob("*/results.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def better(output: Path, target: str, method: str, seed: int) -> float:
    """The learning rate whose selected model has the higher accuracy on source validation, or the lower loss."""

    def validation(lr: float) -> tuple[float, float]:
        evaluations = records(output, Job(target, method, lr, seed))
        chosen = evaluations[select(evaluations)]["validation"]
        return chosen["acc"], -chosen["loss"]

    return max(RATES, key=validation)


def table(jobs: list[Job], output: Path) -> None:
    """Mean and standard deviation over seeds, of the model that source validation selects and of the last."""
    groups: dict[tuple[str, str, float], list[list[dict[str, Any]]]] = {}
    for job in jobs:
        groups.setdefault((job.target, job.label, job.lr), []).append(records(output, job))
    rows = []
    for (target, label, lr), runs in groups.items():
        row = {"target": target, "method": label, "lr": f"{lr:g}", "seeds": str(len(runs))}
        selected = [evaluations[select(evaluations)] for evaluations in runs]
        last = [evaluations[-1] for evaluations in runs]
        for name, key in METRICS.items():
            for which, chosen in (("", selected), (" last", last)):
                values = [100 * record["target"][key] for record in chosen]
                row[name + which] = f"{np.mean(values):.1f} ± {np.std(values):.1f}"
        rows.append(row)
    print_rows(rows, numeric=list(rows[0])[2:])
    print("images: 224 px, lossy WebP; backbone: EfficientNet-Lite0, not the paper's; mean ± deviation over seeds")


if __name__ == "__main__":
    main()
