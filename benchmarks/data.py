"""Measure the data pipeline: first and later starts, batches, growing datasets, and crops from square images.

    python -m benchmarks.data --root DIR_OF_PACS

Prints one table. Each dataset is opened in its own process, so that its memory can be measured. Without `--root`, the
rows of PACS are omitted.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from medic.config.resolve import resolve
from medic.data import RECIPES, Storage, benchmark
from medic.data.augment import resample
from medic.data.decode import decode
from medic.reports.terminal import print_rows
from medic.runs.build import build_trainer
from medic.runs.data import divide_images, load_images

SIDE = 48
COUNTS = (1_000, 10_000, 100_000)


def main() -> None:
    """Run all measurements and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder with PACS")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--skip-growth", action="store_true", help="omit the datasets of 1,000 to 100,000 images")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(open_once(*arguments.child)))
        return
    rows = [*pacs(arguments.root), *batch()]
    if not arguments.skip_growth:
        rows += growth()
    print_rows(rows + crops(), numeric=["value"])


def row(what: str, value: str, limit: str = "") -> dict[str, str]:
    """Return one line of the table."""
    return {"what": what, "value": value, "at most": limit}


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def open_once(dataset: str, root: str, where: str, size: str) -> dict[str, float]:
    """Open a dataset and gather 50 batches of 144 images; return seconds, and MiB of additional memory."""
    bench, before = benchmark(dataset), resident()
    began = time.perf_counter()
    opened = bench.open(Path(root))
    listed = time.perf_counter()
    data = opened.load(Storage(int(size), where=where))  # type: ignore[arg-type]
    done = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        data.images.gather(torch.randint(data.images.shape[0], (144,), generator=generator), torch.device("cpu"))
    return {
        "listing": listed - began,
        "start": done - began,
        "gather": (time.perf_counter() - done) / 50,
        "memory": resident() - before,
    }


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return float(psutil.Process().memory_info().rss / 2**20)


def in_child(cache: Path, *arguments: str) -> dict[str, float]:
    """Run `open_once` in a new process with another cache."""
    command = [sys.executable, __file__, "--child", *arguments]
    environment = {**os.environ, "MEDIC_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def pacs(root: Path | None) -> list[dict[str, str]]:
    """Measure the first and the second start on PACS."""
    if root is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        first, again, mapped = (
            in_child(Path(folder), "pacs", str(root), where, "224") for where in ("ram", "ram", "map")
        )
    return [
        row("PACS, 9,991 images, into the store at 224 px", f"{first['start']:.1f} s", "20 s"),
        row("PACS, a second start, in memory", f"{again['start']:.1f} s", "3 s"),
        row("PACS, a second start, memory map", f"{mapped['start']:.1f} s", "3 s"),
        row("PACS, gathering 144 from memory", f"{1e3 * again['gather']:.1f} ms"),
    ]


def batch() -> list[dict[str, str]]:
    """Measure the fraction of an iteration that drawing tasks and gathering images takes."""
    plan = resolve({"dataset": "digits", "target": "street", "method": "medic++", "device": "cpu"})
    dataset = load_images(plan, torch.device("cpu"))
    trainer = build_trainer(plan, dataset, divide_images(plan, dataset))
    trainer.model.train()

    def draw_and_gather() -> None:
        for step in trainer.grid.draw(trainer.cells, trainer.batch_size):
            for task in step:
                trainer.images.gather(trainer.samples.indices[task.indices], trainer.device)

    trainer.step()
    whole, part = [], []
    for _ in range(15):
        whole.append(timed(trainer.step))
        part.append(timed(draw_and_gather))
    share = 100 * np.median(part) / np.median(whole)
    return [row("drawing and gathering 144 images, of a ConvNet iteration on CPU", f"{share:.2f} %", "5 %")]


def growth() -> list[dict[str, str]]:
    """Measure start and memory for growing numbers of images."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            root, cache = Path(folder) / f"images-{count}", Path(folder) / f"cache-{count}"
            generate(root, count)
            first = in_child(cache, "folder", str(root), "map", str(SIDE))
            memory, mapped = (in_child(cache, "folder", str(root), where, str(SIDE)) for where in ("ram", "map"))
            stored = count * 3 * SIDE * SIDE / 2**20
            rows += [
                row(f"{count:,} images, first start", f"{first['start']:.2f} s"),
                row(f"{count:,} images, second start in memory", f"{memory['start']:.2f} s"),
                row(f"{count:,} images, memory, {stored:.0f} MiB of it pixels", f"{memory['memory']:.0f} MiB"),
                row(f"{count:,} images, second start with a memory map", f"{mapped['start']:.2f} s"),
                row(f"{count:,} images, memory with a memory map", f"{mapped['memory']:.0f} MiB"),
            ]  # fmt: skip
    return rows


def generate(root: Path, count: int) -> None:
    """Write `count` small images in 3 domains of 5 classes."""
    for domain in "abc":
        for label in "vwxyz":
            (root / domain / label).mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(_generate, [(root, start, min(start + 1000, count)) for start in range(0, count, 1000)]))


def _generate(job: tuple[Path, int, int]) -> None:
    root, start, stop = job
    rng = np.random.default_rng(start)
    for number in range(start, stop):
        small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        small.save(root / "abc"[number % 3] / "vwxyz"[number % 5] / f"{number:06d}.jpg")


def crops() -> list[dict[str, str]]:
    """Compare crops of square copies with crops of the original photographs, for the same draws."""
    from sklearn.datasets import load_sample_images

    rows = []
    for width, height in ((400, 400), (400, 300), (640, 360)):
        photos = [
            Image.fromarray(photo).resize((width, height), Image.Resampling.LANCZOS)
            for photo in load_sample_images().images
        ]
        for store in (224, 256, 320, 448):
            differences = [compare(photo, store, seed) for photo in photos for seed in range(8)]
            what = f"a crop of a {width} × {height} photograph, from the store at {store} px"
            rows.append(row(what, f"{np.mean(differences):.2f} of 255"))
    return rows


def compare(photo: Image.Image, store: int, seed: int) -> float:
    """Return the mean difference, in levels of 255, between crops of a photograph and of its square copy."""
    augmentation = RECIPES["medic"]
    whole = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float() / 255
    buffer = io.BytesIO()
    photo.save(buffer, "PNG")
    pixels, (height, width) = decode(buffer.getvalue(), store, "photo")
    squashed = torch.from_numpy(pixels)[None].float() / 255
    frames, flip = torch.tensor([[height, width]]), torch.zeros(1, 1)
    theirs, ours = (
        augmentation.draw(1, *shape, torch.Generator().manual_seed(seed), frame)[:, :4]
        for shape, frame in (((height, width), None), ((store, store), frames))
    )
    one, other = resample(whole, theirs, flip, (224, 224)), resample(squashed, ours, flip, (224, 224))
    return 255 * float((one - other).abs().mean())


if __name__ == "__main__":
    main()
