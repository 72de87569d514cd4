"""What MEDIC++ costs as the work grows: time per image against steps, tasks, classes and images.

    python -m benchmarks.scaling --output scaling.json

Images are generated. One thing is varied at a time from 3 steps of 3 tasks of 16, three domains, 6 classes and 10,000
images; a row says how long an image takes, how long the host takes to draw an iteration, how long the start took
(indexing the samples, building the grid), and what memory training takes beyond the images.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import medic
from medic.config.optim import OptimConfig
from medic.data import RECIPES, Samples
from medic.data.images import Resident
from medic.models import Classifier, create_backbone
from medic.reports.terminal import print_rows
from medic.runs.optimizer import make_optimizer
from medic.strategies import MultiStep
from medic.tasks import Grid
from medic.training import Trainer
from medic.training.precision import pick_precision


@dataclass(frozen=True)
class Work:
    """What is varied."""

    what: str
    steps: tuple[int, ...] = (3, 3, 3)
    domain_splits: int = 3
    class_splits: int = 3
    domains: int = 3
    classes: int = 6
    images: int = 10_000


WORK = [
    *(Work(f"{len(steps)} steps of {steps[0]}", steps=steps) for steps in ((9,), (3,) * 3, (1,) * 9)),
    *(
        Work(f"{d * c} tasks, {d} × {c}", domain_splits=d, class_splits=c, steps=(d * c // 3,) * 3)
        for d, c in ((3, 1), (3, 2), (3, 3), (3, 6))
    ),
    *(Work(f"{count} classes", classes=count) for count in (6, 65, 126, 345)),
    Work("345 classes, 5 domains, 27 tasks", classes=345, domains=5, class_splits=9, steps=(9,) * 3),
    *(Work(f"{count:,} images", images=count) for count in (1_000, 10_000, 100_000, 500_000)),
]


def main() -> None:
    """Measure, print one table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet50" if torch.cuda.is_available() else "convnet")
    parser.add_argument("--size", type=int, default=64 if torch.cuda.is_available() else 32, help="side of an image")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each row is timed")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [measure(work, arguments.backbone, arguments.size, device, arguments.seconds) for work in WORK]
    print_rows([{key: format_cell(value) for key, value in row.items()} for row in rows], numeric=list(rows[0])[1:])
    if arguments.output:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        arguments.output.write_text(json.dumps({"device": name, "rows": rows}, indent=2) + "\n")


def format_cell(value: Any) -> str:
    return "–" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)


def measure(work: Work, backbone: str, size: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """One row."""
    pixels = torch.randint(256, (work.images, 3, size, size), dtype=torch.uint8, device=device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    began = time.perf_counter()
    trainer = make_trainer(work, Resident(pixels), backbone, device)
    start = time.perf_counter() - began
    for _ in range(6):
        trainer.step()
    trainer.wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        trainer.step()
        count += 1
    trainer.wait()
    spent = (time.perf_counter() - began) / count
    began = time.perf_counter()
    for _ in range(20):
        trainer.grid.draw(trainer.cells, trainer.batch_size)
    draw = (time.perf_counter() - began) / 20
    images = trainer.batch_size * trainer.grid.tasks
    return {
        "what": work.what,
        "images an iteration": images,
        "µs an image": 1e6 * spent / images,
        "drawing ms": 1e3 * draw,
        "start s": start,
        "peak GiB": (torch.cuda.max_memory_allocated() - before) / 2**30 if on_gpu else None,
    }


def make_trainer(work: Work, images: Resident, backbone: str, device: torch.device) -> Trainer:
    """A trainer of MEDIC++ on generated labels."""
    generator = torch.Generator().manual_seed(0)
    network = create_backbone(backbone)
    model = Classifier(network, work.classes).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    positions = torch.arange(work.images)
    cell = positions % (work.classes * work.domains)  # none is empty, if there are as many images
    optim = OptimConfig(
        iterations=1000,
        optimizer="sgd",
        lr=1e-3,
        momentum=0.9,
        weight_decay=5e-4,
        head_lr_scale=1.0,
        clip_norm=None,
        schedule="constant",
        warmup=0,
        averaging="none",
    )
    return Trainer(
        model=model.train(),
        images=images,
        samples=Samples(positions, cell // work.domains, cell % work.domains),
        grid=Grid(work.domain_splits, work.class_splits, work.steps, sampling="adaptive"),
        strategy=MultiStep(1e-3),
        objective=medic.objective(medic.ce, medic.Ova(0.5)),
        optimizer=make_optimizer(optim, list(model.backbone.parameters()), model.heads()),
        schedule=lambda iteration: 1.0,
        augmentation=RECIPES["medic"],
        preprocessing=network.preprocessing,
        batch_size=16,
        generator=generator,
        device=device,
        precision=pick_precision("auto", device),
    )


if __name__ == "__main__":
    main()
