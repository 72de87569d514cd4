"""What each system costs: time of an iteration and peak memory, relative to `erm` in the same run.

    python -m benchmarks.costs --root DIR_OF_PACS --output costs.json      # on a GPU

All of them train on 144 images of 224 pixels an iteration, captured where they can be and not compiled. A system that
cannot have ResNet-50, because it works inside another backbone or on smaller images, has an `erm` of its own beside it.
"""

import argparse
import gc
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput import rate
from medic.config.plan import Plan
from medic.config.resolve import resolve
from medic.data import Dataset
from medic.methods import METHODS
from medic.reports.terminal import print_rows
from medic.runs.build import build_trainer
from medic.runs.data import divide_images, load_images

APART: dict[str, dict[str, Any]] = {
    "aloft-e": {"backbone": "gfnet_h_ti"},
    "aloft-s": {"backbone": "gfnet_h_ti"},
    "arpl-cs": {"backbone": "convnet", "image_size": 32, "store_size": 224},
}
"""What a system needs that ResNet-50 and 224 pixels are not."""


def main() -> None:
    """Measure, print one table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder with PACS")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is timed")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    dataset: Dataset | None = None
    for own, methods in grouped(arguments.methods, arguments.backbone):
        base: dict[str, float] = {}
        for name in methods:
            settings = {"dataset": "pacs", "root": arguments.root, "target": "sketch", "method": name, "compile": "off"}
            plan = resolve({**settings, **own})
            dataset = dataset or load_images(plan, torch.device("cuda"))
            measured, captured = cost(plan, dataset, arguments.seconds)
            base = base or measured
            relative = {f"× {key}": value / base[key] for key, value in measured.items()}
            rows.append({"method": name, "backbone": own["backbone"], **measured, **relative, "graph": captured})
            print(json.dumps(rows[-1]), flush=True)
    print_rows(
        [{key: format_cell(value) for key, value in row.items()} for row in rows],
        numeric=["ms", "GiB", "× ms", "× GiB"],
    )
    if arguments.output:
        arguments.output.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=2) + "\n")


def format_cell(value: str | float | bool) -> str:
    """Format a cell of the table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def grouped(methods: Iterable[str], backbone: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Group methods by the settings they need, `erm` first."""
    alike = [name for name in methods if name not in APART | {"erm": {}}]
    yield {"backbone": backbone}, ["erm", *alike]
    for needs, names in itertools.groupby((name for name in methods if name in APART), lambda name: APART[name]):
        yield needs, ["erm", *names]


def cost(plan: Plan, dataset: Dataset, seconds: float) -> tuple[dict[str, float], bool]:
    """Measure milliseconds per iteration, GiB of memory beyond the images, and whether a CUDA graph was captured."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    trainer = build_trainer(plan, dataset, divide_images(plan, dataset))
    trainer.model.train()
    for _ in range(8):
        trainer.step()
    trainer.wait()
    spent = 1 / rate(trainer.step, trainer.wait, 1, seconds)
    return {"ms": 1e3 * spent, "GiB": (torch.cuda.max_memory_allocated() - before) / 2**30}, trainer.captured


if __name__ == "__main__":
    main()
