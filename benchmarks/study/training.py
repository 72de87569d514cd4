"""Train the runs of a study, and record the evaluations that rules and tables need."""

import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.study.methods import METHODS
from benchmarks.study.runs import Records, Run, make_run, read_runs
from medic import openset
from medic.config.files import load_yaml
from medic.config.plan import Plan
from medic.config.resolve import open_once, resolve
from medic.data import Dataset, benchmark
from medic.evaluation.evaluator import Evaluator
from medic.evaluation.selection import without_target
from medic.runs.build import build_trainer, compiles
from medic.runs.data import divide_images, load_images
from medic.training import Trainer
from medic.training.averaging import Ema, Swad, Tail, WeightAverage

REFRESH_ITERATIONS = 30
"""Iterations from which batch-norm statistics of averaged weights are estimated."""


def make_averages(names: Sequence[str]) -> dict[str, WeightAverage]:
    """Return the weight averages with these names; without names, all of them."""
    averages: dict[str, WeightAverage] = {f"tail-{share:g}": Tail(share) for share in (0.2, 0.5)}
    averages |= {**{f"ema-{decay:g}": Ema(decay) for decay in (0.99, 0.998)}, "swad": Swad()}
    return {name: average for name, average in averages.items() if not names or name in names}


class Images:
    """The images of one process, which opens and loads every dataset once."""

    def __init__(self) -> None:
        self.open = open_once()
        self._loaded: dict[tuple[int, int | None], Dataset] = {}

    def load(self, plan: Plan) -> Dataset:
        """Load the images of a run."""
        key = (id(plan.dataset), plan.config.data.store_size)
        if key not in self._loaded:
            self._loaded[key] = load_images(plan, plan.device)
        return self._loaded[key]


def leave_out_classes(settings: dict[str, Any], images: Images) -> dict[str, Any]:
    """Return the settings of a run. A run with two targets is a rehearsal: it leaves out a third of the known classes.

    The left-out classes play the unknown ones, and the benchmark's unknown classes are not used at all. The runs of
    four domains that are trained on two of them form three perfect matchings, one for each third of the known classes.
    So the three rehearsals of one target leave out every known class once.
    """
    if "," not in settings["target"]:
        return settings
    plan = resolve(settings, images.open)
    first, second = (plan.dataset.domains.index(name) for name in plan.config.data.sources)
    known = plan.config.data.known
    left_out = known[(first ^ second) - 1 :: 3]
    return {**settings, "known": [name for name in known if name not in left_out], "unknown": left_out}


def build(plan: Plan, images: Images) -> tuple[Trainer, Evaluator]:
    """Build the trainer of a run, and the evaluator of its model."""
    dataset = images.load(plan)
    problem = divide_images(plan, dataset)
    trainer = build_trainer(plan, dataset, problem)
    inference = trainer.inference(compiles(plan, plan.device))
    score = openset.get_score(plan.config.evaluation.score)
    return trainer, Evaluator(dataset.domains, problem, inference, score, plan.config.evaluation.threshold)


def measure(evaluator: Evaluator) -> dict[str, Any]:
    """Return the measurements that a rule or a table may need."""
    record = evaluator.record()
    keys = ("acc", "hscore", "oscr", "auroc", "hscore/oracle-10")
    target = {key: record["target"][key] for key in keys}
    by_target = {name: {key: metrics[key] for key in keys} for name, metrics in record["targets"].items()}
    several = {"targets": by_target} if len(by_target) > 1 else {}
    source = without_target(record, evaluator.problem.targets)
    by_domain = {key: value for key, value in source.items() if "_out_" in key}
    return {"validation": record["validation"], "target": target, **several, **by_domain}


def train(
    run: Run,
    images: Images,
    settings: dict[str, Any],
    evaluations: int,
    averages: Sequence[str],
    interpolate: Sequence[float],
) -> Records:
    """Train a run and return its records.

    `interpolate` are shares α of the last average beside the backbone's weights before training (WiSE-FT).
    """
    began = time.perf_counter()
    rate = {} if run.lr is None else {"lr": run.lr}
    settings = {**settings, **METHODS[run.method], **rate, "target": run.target, "seed": run.seed}
    plan = resolve(leave_out_classes(settings, images), images.open)
    trainer, evaluator = build(plan, images)
    model, iterations = trainer.model, plan.config.optim.iterations
    weights: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    backbone: list[Tensor] = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in backbone]
    records: Records = [{"run": run._asdict(), "settings": plan.config.identity, "loaded": time.perf_counter() - began}]
    began = time.perf_counter()

    def evaluate(**description: Any) -> None:
        records.append({**description, **measure(evaluator), "seconds": time.perf_counter() - began})

    def evaluate_weights(parameters: list[Tensor], values: list[Tensor], **description: Any) -> None:
        with torch.no_grad():
            torch._foreach_copy_(parameters, values)
        trainer.refresh_statistics(min(REFRESH_ITERATIONS, iterations))
        evaluate(iteration=iterations, **description)

    by_name, losses = make_averages(averages), []
    model.train()  # also freezes batch norm, if the settings say so
    for iteration in range(1, iterations + 1):
        losses += trainer.step()
        for average in by_name.values():
            average.update(weights, iteration / iterations)
            if average.close_due(iteration, iterations):
                losses += trainer.wait()
                average.close(evaluator.validation()["domain_loss"], iteration)
                model.train()
        if iteration * evaluations % iterations < evaluations:
            losses += trainer.wait()
            evaluate(iteration=iteration, loss=sum(losses) / len(losses), trained=time.perf_counter() - began)
            losses.clear()
            model.train()
    for name, average in by_name.items():
        evaluate_weights(weights, average.result(), average=name, converged=average.converged)
    after = [parameter.detach().clone() for parameter in backbone]
    for share in interpolate:
        evaluate_weights(backbone, list(torch._foreach_lerp(before, after, share)), average=f"wise-{share:g}")
    return records


def work(queue: Any, train_run: Callable[[Run, Images], Records], output: Path, until: float) -> None:
    """Train the runs of a queue until a time."""
    longest, images = 0.0, Images()
    while time.time() + longest < until and (run := queue.get()) is not None:
        began = time.time()
        lines = train_run(run, images)
        unfinished = output / f"{run.file_name}.{os.getpid()}"
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines))
        unfinished.rename(output / run.file_name)
        seconds = time.time() - began
        longest = max(longest, seconds)
        times = [round(next(line[key] for key in ("trained", "seconds", "loaded") if key in line), 1) for line in lines]
        oscr = 100 * lines[-1]["target"]["oscr"]
        print(f"{run.file_name}: {seconds:.0f} s {times}, OSCR {oscr:.1f}", flush=True)


def run_study(
    dataset: str,
    output: Path,
    methods: Sequence[str],
    targets: Sequence[str] | None,
    seeds: Sequence[int],
    rates: Sequence[float] | None,
    iterations: int,
    evaluations: int,
    averages: Sequence[str],
    interpolate: Sequence[float],
    option: Sequence[str],
    jobs: int,
    seconds: float,
    done: Path | None,
) -> None:
    """Train the missing runs, several at a time. The parameters are the options of the command."""
    output.mkdir(parents=True, exist_ok=True)
    overrides = {name: load_yaml(value) for name, value in (text.split("=", 1) for text in option)}
    settings = {**overrides, "dataset": dataset, "iterations": iterations}
    products = itertools.product(seeds, rates or (None,), methods, targets or benchmark(dataset).domains)
    runs = list(dict.fromkeys(make_run(method, target, seed, lr) for seed, lr, method, target in products))
    trained = {run for place in (output, done) if place is not None for run in read_runs(place)}
    missing = [run for run in runs if run not in trained]
    print(f"{len(runs)} runs, {len(missing)} to train", flush=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for item in (*missing, *[None] * jobs):
        queue.put(item)
    train_run = partial(train, settings=settings, evaluations=evaluations, averages=averages, interpolate=interpolate)
    shared = (queue, train_run, output, time.time() + seconds)
    workers = [context.Process(target=work, args=shared) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
