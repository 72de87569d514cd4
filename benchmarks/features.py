"""Measure the time and memory that `--tune head` needs to compute the features of PACS.

    python -m benchmarks.features --root DIR_OF_PACS --backbones vit_small_patch14_dinov2 --sizes 224 518

The weights are random, since they do not change the cost. Nothing is read from the cache.
"""

import argparse
import itertools
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.throughput import device_name, format_cell
from medic.config.resolve import resolve
from medic.reports.terminal import print_rows
from medic.runs.build import build_trainer
from medic.runs.data import divide_images, load_images


def main() -> None:
    """Measure, print one table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder with PACS")
    parser.add_argument("--backbones", nargs="+", default=["vit_small_patch14_dinov2"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 518], help="sides of the images in pixels")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    chosen = itertools.product(arguments.sizes, arguments.backbones, range(2))  # the first run starts CUDA
    rows = [measure(arguments.root, backbone, size, run) for size, backbone, run in chosen]
    cells = [{key: format_cell(value) for key, value in row.items()} for row in rows]
    print_rows(cells, numeric=[key for key in rows[0] if key != "backbone"])
    if arguments.output:
        arguments.output.write_text(json.dumps({"device": device_name(), "rows": rows}, indent=2) + "\n")


def measure(root: str, backbone: str, size: int, run: int) -> dict[str, object]:
    """Return time and memory for the features of all images of PACS at this size, in the `run`-th measurement."""
    settings = {"dataset": "pacs", "root": root, "target": "sketch", "backbone": backbone, "image_size": size}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["MEDIC_CACHE"] = empty
        plan = resolve({**settings, "method": "erm", "tune": "head"})
        on_gpu = plan.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        dataset = load_images(plan, plan.device)
        read = time.perf_counter()
        build_trainer(plan, dataset, divide_images(plan, dataset))
        if on_gpu:
            torch.cuda.synchronize()
        done = time.perf_counter()
    count = dataset.images.shape[0]
    return {
        "backbone": backbone,
        "px": size,
        "run": run + 1,
        "images": count,
        "reading s": read - began,
        "features s": done - read,
        "images/s": count / (done - read),
        "GPU GiB": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "peak RAM GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


if __name__ == "__main__":
    main()
