"""Images per second of training and evaluation, each beside its yardsticks in the same run.

    python -m benchmarks.throughput --root DIR_OF_PACS --output throughput.json      # on a GPU
    python -m benchmarks.throughput                                                  # on a CPU: the ConvNet on digits
    python -m benchmarks.throughput --root DIR --backbones convnext_tiny vit_tiny_patch16_224 --tunes all adapters head
    python -m benchmarks.throughput --root DIR --backbones mobilenetv2_100 --methods erm medic++ --image-size 160

The yardsticks are bare loops on tensors that are on the device already: plain training with a batch of 144, eagerly,
and the same compiled and captured as a CUDA graph. They share backbone, precision and memory format with the product.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from medic.config.plan import Plan
from medic.config.resolve import resolve
from medic.data import Dataset
from medic.errors import MedicError
from medic.models import Classifier, create_backbone
from medic.reports.terminal import print_rows
from medic.runs.build import build_network, build_trainer
from medic.runs.data import divide_images, load_images

BATCH = 144


def main() -> None:
    """Measure, print one table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=str, help="folder with PACS")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--backbones", nargs="*", default=[], help="measure the methods with each of them")
    parser.add_argument("--methods", nargs="*", default=["medic++"], help="with --backbones: erm, medic++ or both")
    parser.add_argument("--tunes", nargs="*", default=["all"], help="and with each of these values of --tune")
    parser.add_argument("--image-size", type=int, help="side of an image in pixels, with --backbones")
    parser.add_argument("--only", nargs="*", help="labels of the product's rows to measure")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each row is timed")
    parser.add_argument("--compile", default="on", help="of the product's rows: on or off")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms, in all rows")
    parser.add_argument("--profile", action="store_true", help="also print where the time of each row goes, by kernel")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.backbones:
        rows = backbone_rows(arguments)
    else:
        rows = gpu_rows(arguments) if torch.cuda.is_available() else cpu_rows(arguments.seconds)
    print_rows([{key: format_cell(value) for key, value in row.items()} for row in rows], numeric=list(rows[0])[1:])
    if arguments.output:
        arguments.output.write_text(json.dumps({"device": device_name(), "rows": rows}, indent=2) + "\n")


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def format_cell(value: Any) -> str:
    if value is None:
        return "–"
    return (
        f"{value:,.2f}"
        if isinstance(value, float) and value < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def rate(step: Callable[[], object], wait: Callable[[], object], images: int, seconds: float) -> float:
    """Images per second of a step that was warmed up."""
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            step()
        count += 4
    wait()
    return images * count / (time.perf_counter() - began)


PRODUCT: dict[str, dict[str, Any]] = {
    "medic++, 3 steps of 3": {"method": "medic++"},
    "medic++, 9 steps of 1": {"method": "medic++", "steps": [1] * 9},
    "medic++, random": {"method": "medic++", "sampling": "random"},
    "medic++, probe": {"method": "medic++", "sampling": "probe"},
    "erm": {"method": "erm"},
    "fish": {"method": "fish"},
    "mldg": {"method": "mldg"},
    "medic": {"method": "medic"},
}


def gpu_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = arguments.cudnn_benchmark
    eager = bare_loop(arguments, device, fast=False)
    fast = bare_loop(arguments, device, fast=True)
    small = bare_loop(arguments, device, fast=True, batch=BATCH // 3)
    rows = [
        {"what": "yardstick: bare loop, eager", **eager,
         "× eager": 1.0, "× captured": eager["images/s"] / fast["images/s"]},
        {"what": "yardstick: bare loop, captured and compiled", **fast,
         "× eager": fast["images/s"] / eager["images/s"], "× captured": 1.0},
        {"what": "the same with a batch of 48", **small,
         "× eager": small["images/s"] / eager["images/s"], "× captured": small["images/s"] / fast["images/s"]},
    ]  # fmt: skip
    dataset: Dataset | None = None
    for label, settings in PRODUCT.items():
        if arguments.only is not None and label not in arguments.only:
            continue
        compiled = "off" if label == "medic" else arguments.compile
        shared = {"dataset": "pacs", "root": arguments.root, "target": "sketch", "backbone": arguments.backbone}
        plan = resolve({**shared, "compile": compiled, **settings})
        dataset = dataset or load_images(plan, device)
        row, trainer = product(label, plan, dataset, arguments.seconds)
        print(f"{label}: {row['images/s']:,.0f} images/s", file=sys.stderr, flush=True)
        if arguments.profile:
            profile(label, trainer.step, trainer.wait)
        rows.append(
            {**row, "× eager": row["images/s"] / eager["images/s"], "× captured": row["images/s"] / fast["images/s"]}
        )
        if label == "medic++, 3 steps of 3":
            rows.append({**evaluation(trainer, arguments.seconds), "× eager": None, "× captured": None})
        del trainer
        torch.compiler.reset()
    return rows


def backbone_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Methods with several backbones, each beside a bare loop over the same step sizes."""
    rows = []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for backbone in arguments.backbones:
        dataset: Dataset | None = None
        for tune, method in itertools.product(arguments.tunes, arguments.methods):
            size = {} if arguments.image_size is None else {"image_size": arguments.image_size}
            shared = {"dataset": "pacs", "root": arguments.root, "target": "sketch", "batch_norm": "frozen"}
            settings = {**shared, **size, "method": method, "backbone": backbone, "tune": tune}
            plan = resolve({**settings, "compile": "off" if tune == "head" else arguments.compile})
            dataset = dataset or load_images(plan, device)
            label = f"{backbone}, {tune}, {plan.config.data.image_size} px, {method}"
            try:
                row, trainer = product(label, plan, dataset, arguments.seconds)
            except MedicError as error:  # a network without attention has no adapters
                print(f"{label}: {error}", file=sys.stderr)
                continue
            if arguments.profile:
                profile(label, trainer.step, trainer.wait)
            speed = bare_steps(plan, trainer, arguments)
            rows.append({**row, "bare": speed, "× bare": row["images/s"] / speed})
            cells = ", ".join(f"{name} {format_cell(value)}" for name, value in rows[-1].items() if name != "what")
            print(f"{label}: {cells}", file=sys.stderr, flush=True)
            del trainer
            torch.compiler.reset()
    return rows


def bare_steps(plan: Plan, trainer: Any, arguments: argparse.Namespace) -> float:
    """Images per second of a bare loop with the same network and step sizes, on tensors on the device."""
    device, sizes = plan.device, [count * plan.batch_size for count in plan.grid.sizes]
    torch.manual_seed(0)
    model = build_network(plan).model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=device.type == "cuda")
    shape = trainer.images.shape[1:] if plan.config.model.head_alone else (3, *2 * [plan.config.data.image_size])
    batches = [(torch.randn(count, *shape, device=device).contiguous(memory_format=torch.channels_last),
                torch.randint(6, (count,), device=device)) for count in sizes]  # fmt: skip
    network = torch.compile(model, dynamic=False) if plan.config.execution.compile == "on" else model

    def step() -> None:
        optimizer.zero_grad()
        for x, y in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
                output = network(x)
                loss = functional.cross_entropy(output.logits, y)
                if output.ova is not None:
                    margin = output.ova[:, 1] - output.ova[:, 0]
                    loss += functional.binary_cross_entropy_with_logits(margin, functional.one_hot(y, 6).float())
            loss.backward()
        optimizer.step()

    run = captured(step) if device.type == "cuda" else step
    for _ in range(5):
        run()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    speed = rate(run, wait, sum(sizes), arguments.seconds)
    if arguments.profile:
        profile(f"bare loop of {plan.config.model.backbone}", run, wait)
    return speed


def product(label: str, plan: Plan, dataset: Dataset, seconds: float) -> tuple[dict[str, Any], Any]:
    """Measure the product's own trainer."""
    images = plan.batch_size * plan.grid.tasks
    began = time.perf_counter()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    trainer = build_trainer(plan, dataset, divide_images(plan, dataset))
    trainer.model.train()
    for _ in range(8):
        trainer.step()
    trainer.wait()
    start = time.perf_counter() - began
    speed = rate(trainer.step, trainer.wait, images, seconds)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    return {"what": label, "images/s": speed, "peak GiB": peak, "start s": start}, trainer


KERNELS = {
    "convolutions and products": ("cudnn", "xmma", "nvjet", "cutlass", "gemm", "wgrad", "dgrad", "fprop", "splitK"),
    "fused by the compiler": ("triton",),
    "all parameters at once": ("multi_tensor", "FusedOptimizer"),
    "batch norm": ("batch_norm", "bn_fw", "bn_bw"),
    "copies": ("Memcpy", "Memset", "copy"),
}


def profile(label: str, step: Callable[[], object], wait: Callable[[], object]) -> None:
    """Print where the device spends the time of an iteration, by kind of kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            step()
        wait()
    spent: dict[str, list[float]] = {}
    for event in profiler.key_averages():
        kind = next((kind for kind, names in KERNELS.items() if any(name in event.key for name in names)), "other")
        total = spent.setdefault(kind, [0.0, 0.0])
        total[0] += event.self_device_time_total / 5e3
        total[1] += event.count / 5
    print(f"{label}: {sum(total for total, _ in spent.values()):.1f} ms of kernels an iteration")
    for kind, (total, count) in sorted(spent.items(), key=lambda item: -item[1][0]):
        print(f"  {total:6.2f} ms  {count:6.0f} launches  {kind}")
    print("the longest kernels:")
    for event in sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)[:15]:
        print(f"  {event.self_device_time_total / 5e3:6.2f} ms  {event.count / 5:6.0f} launches  {event.key[:100]}")


def evaluation(trainer: Any, seconds: float) -> dict[str, Any]:
    infer = trainer.inference()
    indices = torch.arange(trainer.images.shape[0])
    began = time.perf_counter()
    infer(indices[:512])
    start = time.perf_counter() - began
    speed = rate(lambda: infer(indices), torch.cuda.synchronize, len(indices), seconds)
    return {"what": "evaluation", "images/s": speed, "peak GiB": None, "start s": start}


def bare_loop(arguments: argparse.Namespace, device: torch.device, fast: bool, batch: int = BATCH) -> dict[str, Any]:
    """Plain training of the same network on one batch that is on the device."""
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    model = (
        Classifier(create_backbone(arguments.backbone), 6, "close")
        .to(device, memory_format=torch.channels_last)
        .train()
    )  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)
    x = torch.randn(batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(6, (batch,), device=device)
    network = torch.compile(model, dynamic=False) if fast else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=not fast):
            loss = functional.cross_entropy(network(x).logits, y)
        loss.backward()
        optimizer.step()

    run = captured(step) if fast else step
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter() - began
    speed = rate(run, torch.cuda.synchronize, batch, arguments.seconds)
    if arguments.profile:
        profile(f"bare loop of {batch}, {'captured' if fast else 'eager'}", run, torch.cuda.synchronize)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    torch.compiler.reset()
    return {"images/s": speed, "peak GiB": peak, "start s": start}


def captured(step: Callable[[], None]) -> Callable[[], None]:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def cpu_rows(seconds: float) -> list[dict[str, Any]]:
    """MEDIC++ on the built-in benchmark against a bare loop over the same step sizes, taking turns."""
    plan = resolve({"dataset": "digits", "target": "street", "method": "medic++", "device": "cpu"})
    dataset = load_images(plan, torch.device("cpu"))
    trainer = build_trainer(plan, dataset, divide_images(plan, dataset))
    trainer.model.train()
    bare = bare_cpu_step([sum(sizes) for sizes in [(16, 16, 16)] * 3])
    trainer.step()
    bare()
    ours, theirs = [], []
    began = time.perf_counter()
    while time.perf_counter() - began < 10 * seconds:
        for times, step in ((ours, trainer.step), (theirs, bare)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    best, yardstick = sorted(ours)[len(ours) // 2], sorted(theirs)[len(theirs) // 2]
    return [
        {"what": "yardstick: bare loop, three steps of 48", "images/s": BATCH / yardstick, "× bare": 1.0},
        {"what": "medic++, ConvNet, digits", "images/s": BATCH / best, "× bare": yardstick / best},
    ]


def bare_cpu_step(sizes: list[int]) -> Callable[[], None]:
    model: nn.Module = Classifier(create_backbone("convnet"), 6).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    batches = [
        (torch.randn(size, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.randint(6, (size,)))
        for size in sizes
    ]

    def step() -> None:
        optimizer.zero_grad()
        for x, y in batches:
            output = model(x)
            margin = output.ova[:, 1] - output.ova[:, 0]
            ova = functional.binary_cross_entropy_with_logits(margin, functional.one_hot(y, 6).float())
            (functional.cross_entropy(output.logits, y) + ova).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
