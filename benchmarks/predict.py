"""Measure `medic predict`: images per second against a bare forward pass, and memory as paths grow.

    python -m benchmarks.predict --backbone resnet18 --paths 1000 10000 100000 --output predict.json

Photographs are generated, and their files named again and again. The yardsticks are measured in the same run: the
forward pass alone on tensors that are ready, and decoding alone in all threads. Then the command reads 1,000 and more
paths from standard input, and its peak memory is that of its process.
"""

import argparse
import itertools
import json
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch is imported

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from medic.data.inputs import ordered, to_pixels
from medic.deploy.predictor import BATCH, GPU_BATCH, Predictor
from medic.models import Preprocessing, assemble, create_backbone
from medic.openset import fixed, get_score
from medic.reports.terminal import print_rows

FILES = 256


def main() -> None:
    """Measure, print one table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size", type=int, default=224, help="side of an input")
    parser.add_argument("--photograph", type=int, nargs=2, default=(500, 375), help="width and height of the files")
    parser.add_argument("--yardstick", type=int, default=1024, help="images of the yardsticks")
    parser.add_argument("--paths", type=int, nargs="+", default=[1000, 10_000], help="numbers of paths of the command")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = make_files(folder / "images", tuple(arguments.photograph))
        predictor = make_predictor(arguments.backbone, arguments.size)
        predictor.save(folder / "model")
        if torch.cuda.is_available():
            predictor = predictor.to("cuda")
        commands = (command(folder, files, count) for count in arguments.paths)
        rows = []
        for row in itertools.chain(yardsticks(predictor, files, arguments.yardstick), commands):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    bare = rows[0]["images/s"]
    print_rows(
        [
            {name: format_cell(value) for name, value in {**row, "× bare": row["images/s"] / bare}.items()}
            for row in rows
        ],
        numeric=["images", "images/s", "peak MiB", "× bare"],
    )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=2) + "\n")


def format_cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def make_files(folder: Path, size: tuple[int, int]) -> list[Path]:
    """Write photographs: smooth, with noise, as JPEG."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    files = [folder / f"{number:03}.jpg" for number in range(FILES)]
    for file in files:
        smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + rng.normal(0, 8, (size[1], size[0], 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return files


def make_predictor(backbone: str, size: int) -> Predictor:
    """Make a model that was not trained, with six classes."""
    torch.manual_seed(0)
    made = create_backbone(backbone, size=size)
    score = get_score("bcls")
    classes = tuple(f"class {number}" for number in range(6))
    preprocessing = Preprocessing(made.preprocessing.mean, made.preprocessing.std, size)
    description = {"model": {"backbone": backbone, "head": "shared", "networks": 1}}
    network = assemble([made], len(classes), "shared").eval()
    return Predictor(network, classes, preprocessing, size, 1, score, fixed(score), description, torch.device("cpu"))


def yardsticks(predictor: Predictor, files: list[Path], count: int) -> Iterator[dict[str, Any]]:
    """Measure the bare forward pass, decoding, and the stream of predictions."""
    batch = GPU_BATCH if predictor.device.type == "cuda" else BATCH
    inputs = torch.randn(batch, 3, predictor.preprocessing.size, predictor.preprocessing.size, device=predictor.device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    count = max(1, count // batch) * batch

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(count // batch):
                predictor.network(inputs).logits.cpu()

    def decode() -> None:
        for _ in ordered(lambda file: to_pixels(file, predictor.decoded), repeated(files, count), 2 * batch):
            pass

    def stream() -> None:
        for _ in predictor.stream(repeated(files, count)):
            pass

    for what, function in (("forward pass alone", forward), ("decoding alone", decode), ("Predictor.stream", stream)):
        function()
        began = time.perf_counter()
        function()
        yield {"what": what, "images": count, "images/s": count / (time.perf_counter() - began), "peak MiB": "–"}


def repeated(files: list[Path], count: int) -> Iterator[str]:
    return itertools.islice(itertools.cycle(map(str, files)), count)


def command(folder: Path, files: list[Path], count: int) -> dict[str, Any]:
    """Run the command on `count` paths from standard input; its speed is that from the first row on."""
    listed = folder / "paths.txt"
    with listed.open("w") as file:
        file.writelines(f"{path}\n" for path in repeated(files, count))
    call = [sys.executable, "-m", "medic", "predict", str(folder / "model"), "-", "--quiet"]
    with listed.open() as paths, subprocess.Popen(call, stdin=paths, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        measured, peak, rows, began = psutil.Process(process.pid), 0, 0, 0.0
        process.stdout.readline()
        for rows, _ in enumerate(process.stdout, start=1):
            if rows % 100 == 1:
                began = began or time.perf_counter()
                peak = max(peak, measured.memory_info().rss)
        seconds = time.perf_counter() - began
    assert (process.returncode, rows) == (0, count)
    speed, what = count / seconds, f"medic predict, {count:,} paths"
    return {"what": what, "images": count, "images/s": speed, "peak MiB": peak / 2**20}


if __name__ == "__main__":
    main()
