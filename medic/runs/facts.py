"""Facts and notes that a run reports before training."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from medic.config.imports import LOCAL
from medic.config.plan import Plan
from medic.data import Dataset, Problem, Samples
from medic.models import OURS, has_batch_norm, is_custom
from medic.runs.build import build_objective

MAX_LISTED = 12
"""Maximum number of names shown in a list."""
LARGE = 128
"""Minimum image size, in pixels, at which a timm network is slow on a CPU."""


def describe(plan: Plan, dataset: Dataset, problem: Problem, path: Path) -> Iterator[tuple[str, str]]:
    """Yield each fact about a run as a name and a one-line text."""
    data, optim, model = plan.config.data, plan.config.optim, plan.config.model
    yield "output", str(path)
    penalty = "" if plan.config.objective.penalty is None else f" + {plan.config.objective.penalty}"
    sampling = "" if plan.config.tasks.sampling is None else f", sampling {plan.config.tasks.sampling}"
    objective = f"objective {plan.config.objective.objective}{penalty}"
    yield "method", f"{plan.config.run.method}, {objective}{sampling}, seed {plan.seed}"
    yield "known", _listed(data.classes.known)
    yield "unknown", _listed(data.classes.unknown) or "none"
    parts = [
        f"{dataset.domains[domain]} {_count(problem.train, domain)} + {_count(problem.validation, domain)}"
        for domain in problem.sources
    ]
    yield "sources", f"{_listed(parts)} (training + validation images)"
    places = problem.targets or problem.sources
    seen = "" if problem.targets else "none; held-out images: "
    yield "target", seen + _listed([_target(dataset.domains[domain], problem.target, domain) for domain in places])
    made = ", initialised by your code" if is_custom(model.backbone) else ", from scratch"
    weights = made if plan.weights is None else f", weights {plan.weights}"
    trained = "" if model.tune == "all" else f", trains {model.tune}"
    trained += "" if model.lora_rank is None else f" of rank {model.lora_rank}"
    trained += f", only the head for the first {optim.head_first} iterations" if optim.head_first else ""
    pool = "" if model.pool == "own" else f", pool {model.pool}"
    yield "backbone", f"{model.backbone}{weights}, {data.image_size} px{pool}{trained}"
    device = plan.device
    place = f"cpu, threads {torch.get_num_threads()}"
    if device.type == "cuda":
        place = torch.cuda.get_device_name(device)
    yield "device", f"{place}, {plan.precision}"
    tasks = plan.grid.tasks
    images = f"{plan.batch_size * tasks} images" + (f" ({tasks} tasks × {plan.batch_size})" if tasks > 1 else "")
    every = plan.config.evaluation.evaluate_every
    when = "evaluated at the end" if every >= optim.iterations else f"evaluated every {every}"
    yield "training", f"{optim.iterations} iterations of {images}, {when}"
    inner = "" if plan.config.objective.inner_lr is None else f", inner lr {plan.config.objective.inner_lr:g}"
    warmup = f", warm-up {optim.warmup}" if optim.warmup else ""
    clip = f", clip norm {optim.clip_norm:g}" if optim.clip_norm else ""
    decay = f", layer decay {optim.layer_decay:g}" if optim.layer_decay < 1 else ""
    rates = f"{optim.optimizer} lr {optim.lr:g}{inner}{decay}, weight decay {optim.weight_decay:.3g}{clip}"
    augment = "" if model.head_alone and data.augment == "none" else f", augmentation {data.augment}"
    has_norm = not model.head_alone and has_batch_norm(model.backbone, data.image_size)
    norm = f", batch norm {model.batch_norm}" if has_norm else ""
    shape = f"schedule {optim.schedule}{warmup}{norm}, averaging {optim.averaging}{augment}"
    start = plan.start if plan.config.run.protocol is None else f"protocol {plan.config.run.protocol}"
    yield "recipe", f"{start}: {rates}, {shape}"


def notes(plan: Plan) -> Iterator[str]:
    """Yield warnings about a plan, one sentence each."""
    model = plan.config.model
    usual = model.backbone in OURS and model.tune == "all"  # small networks, for small images
    if plan.weights is None and not usual and not is_custom(model.backbone):
        scratch = f"backbone {plan.config.model.backbone} starts from random weights"
        yield f"{scratch}: use --weights FILE to load pretrained weights"
    size, smaller = plan.config.data.image_size, " or ".join(_smaller(plan.config.model.backbone))
    slow = plan.config.model.backbone not in OURS and size >= LARGE and not plan.config.model.head_alone
    if slow and plan.device.type == "cpu":
        head = "" if plan.weights is None else ", train only the head with --tune head"
        way = f"use a GPU{head}, or use a smaller network with {smaller}"
        yield f"backbone {plan.config.model.backbone} at {size} px is slow on a CPU: {way}"
    # An explicitly empty list, as in the runs of `medic calibrate --left-out`, is no oversight.
    if not plan.config.data.unknown and plan.user_settings.get("unknown") is None:
        how = "use --known or --split leave-one-class-out in a separate run"
        yield f"every class is known: the model still rejects images; to measure how well, {how}"
    if any(plugin.name == LOCAL for plugin in plan.plugins):
        yield "this run uses code that exists in this process only, so no other process can resume it: pass imports="
    end = plan.config.optim.iterations
    for start in build_objective(plan).restart_iterations(len(plan.grid.sizes)):
        if start >= end:
            yield (
                f"the penalty reaches its full weight at iteration {start}, but training stops at {end}: "
                "use --hparams anneal=N to reach it earlier"
            )


def _smaller(backbone: str) -> Iterator[str]:
    """Yield options that select a faster backbone."""
    if backbone != "resnet18":
        yield "--backbone resnet18"
    yield "--backbone convnet --image-size 32"


def _count(samples: Samples, domain: int) -> int:
    return int((samples.domain == domain).sum())


def _target(name: str, target: Samples, domain: int) -> str:
    known = target.label[target.domain == domain] >= 0
    return f"{name} {int(known.sum())} known + {int((~known).sum())} unknown images"


def _listed(names: Sequence[str]) -> str:
    """Join names with commas; a long list is cut and ends with the total number."""
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_LISTED])}, … ({len(names)} in all)"
