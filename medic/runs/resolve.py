"""From what was asked for to what will run: defaults filled in, everything checked, nothing started."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from medic.data import benchmark, describe_augmentation
from medic.errors import MedicError, check_choice
from medic.runs.config import RunConfig, check_kinds
from medic.runs.draws import with_draws
from medic.runs.plans import (
    DataPlan,
    ModelPlan,
    Open,
    TrainingPlan,
    open_benchmark,
    ova_scale,
    parse_axes,
    pick_device,
    plan_data,
    plan_grid,
    plan_model,
    plan_training,
    written_splits,
)
from medic.runs.trackers import check_trackers
from medic.methods import (
    AVERAGES,
    LAYERS,
    METHODS,
    OBJECTIVES,
    PENALTIES,
    Law,
    Method,
    Numbers,
    find_method,
    usual_numbers,
)
from medic.models import find_weights
from medic.objectives import Penalty
from medic.openset import SCORES
from medic.strategies import InnerLoop
from medic.tasks import Grid


@dataclass(frozen=True)
class Resolved:
    """A configuration with every default written out, and the values it stands for."""

    config: RunConfig
    method: Method
    """With the parts that were asked for in place of its own."""
    data: DataPlan
    model: ModelPlan
    training: TrainingPlan


def resolve(config: RunConfig, find: Open = open_benchmark) -> Resolved:
    """Fill in what was left open and check all of it, or raise with the one thing that is wrong."""
    _check_numbers(config)
    check_kinds(config)
    check_trackers(config.track)
    bench, method = benchmark(config.dataset), _adapted(find_method(config.method), config)
    backbone = config.backbone or method.backbone or bench.backbone
    if method.backbone not in (None, backbone):
        raise MedicError(f"method {method.name!r} works inside {method.backbone}: leave out --backbone {backbone}")
    if bench.channels != 3 and backbone != bench.backbone:
        raise MedicError(
            f"backbone {backbone!r} takes images of 3 channels, and those of {bench.name!r} have {bench.channels}: "
            f"use {bench.backbone}"
        )
    data = plan_data(config, bench, backbone, pick_device(config.device), find)
    config = with_draws(config, method, data.size, len(data.sources), plan_grid(config, method, data).tasks)
    numbers = Numbers(config.hparams, usual_numbers(config.dataset))
    model = plan_model(config, backbone, method, numbers, len(data.sources))
    training = plan_training(config, method, data, numbers)
    numbers.check(method.name)
    _check_penalties(model, training)
    _check_networks(method.objective, training.grid, len(data.sources))
    for advisor in training.advisors:
        advisor.check(model.objective, training.grid)
    if config.weights is not None:  # last, as it may take a download
        model = replace(model, weights=find_weights(backbone, config.weights))
    optimizer, strategy = training.optimizer, training.strategy
    inner = strategy if isinstance(strategy, InnerLoop) else None
    complete = replace(
        config,
        target=list(data.targets),
        sources=list(data.sources),
        split=None,  # the lists of classes say the same
        known=list(data.classes.known),
        unknown=list(data.classes.unknown),
        partial=data.partial,
        validation=data.validation,
        holdout=None if data.validation == "official" else data.holdout,
        trial_seed=None if data.validation == "official" else data.trial_seed,
        augment=describe_augmentation(data.recipe),
        image_size=data.size,
        store_size=data.storage.size,
        axes=parse_axes(config.axes) or None,  # those of the method's own are no part of the data
        backbone=model.backbone,
        head=model.head,
        objective=method.objective,
        penalty=method.penalty,
        hparams=numbers.used or None,
        ova_scale=ova_scale(config, method),
        separate=training.grid.separate if training.grid.separates else None,
        class_groups=training.grid.class_groups,
        score=model.score,
        threshold=model.threshold,
        domain_splits=written_splits(training.grid.domains, method.grid.domains),
        class_splits=written_splits(training.grid.classes, method.grid.classes),
        steps=list(training.grid.round),
        repeat=training.grid.repeat,
        sampling=None if training.grid.classes is None else training.grid.sampling,
        batch_size=training.batch_size,
        images=None,  # the size of a batch says the same
        inner_lr=inner.lr if inner else None,
        bn_buffers=inner.bn_buffers if inner else None,
        optimizer=optimizer.name,
        lr=optimizer.lr,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        schedule=training.schedule.name,
        head_lr_scale=optimizer.head_lr_scale,
        layer=method.layer or "none",
        batch_norm=model.batch_norm,
        averaging=method.averaging or "none",
        evaluate_every=training.evaluate_every,
    )
    return Resolved(complete, method, data, model, training)


def _adapted(method: Method, config: RunConfig) -> Method:
    """The method with the parts that were asked for by name in place of its own."""
    objective = check_choice("objective", config.objective or method.objective, OBJECTIVES)
    score = config.score or (method.score if objective == method.objective else None)
    layer = check_choice("layer", config.layer or method.layer or "none", ["none", *LAYERS])
    averaging = check_choice("averaging", config.averaging or method.averaging or "none", ["none", *AVERAGES])
    penalty = check_choice("penalty", config.penalty, PENALTIES) if config.penalty else method.penalty
    norms = config.batch_norm or (_home(method, penalty) or method).batch_norm
    return replace(
        method,
        objective=objective,
        penalty=penalty,
        score=None if score is None else check_choice("score", score, SCORES),
        layer=None if layer == "none" else layer,
        averaging=None if averaging == "none" else averaging,
        batch_norm=check_choice("batch_norm", norms, ["local", "sync", "frozen"]),
        search=_laws(method, penalty),
    )


def _home(method: Method, penalty: str | None) -> Method | None:
    """The method that a penalty is of, which says what goes with it: this one, if it is, or else the first."""
    return next((one for one in (method, *METHODS.values()) if one.penalty == penalty), None)


def _laws(method: Method, penalty: str | None) -> Mapping[str, Law]:
    """Where the numbers of a method are searched for with a penalty, whose own laws are those of its method."""
    home = _home(method, penalty)
    own = method.search if method.penalty in (None, penalty) else {}
    return {**own, **(home.search if home is not None else {})}


COUNTS = (
    "iterations",
    "batch_size",
    "images",
    "repeat",
    "class_groups",
    "evaluate_every",
    "checkpoint_every",
    "views",
    "image_size",
    "store_size",
)
RATES = ("lr", "inner_lr", "clip_norm", "head_lr_scale", "ova_scale")


def _check_numbers(config: RunConfig) -> None:
    """Reject numbers that cannot be what they are for."""
    for names, kinds, least in (
        (COUNTS, (int,), "a whole number, 1 or more"),
        (
            ("seed", "trial_seed", "hparams_seed", "warmup", "domain_splits", "class_splits"),
            (int,),
            "a whole number, 0 or more",
        ),
        (RATES, (int, float), "a number above 0"),
        (("momentum", "weight_decay"), (int, float), "a number, 0 or more"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None and not _is_number(value, kinds, zero="0 or more" in least):
                raise MedicError(f"{name} is {value!r}: give {least}")
    if config.momentum is not None and config.momentum >= 1:
        raise MedicError(f"momentum is {config.momentum}: give a number below 1")
    if config.warmup > config.iterations:
        raise MedicError(f"warmup is {config.warmup}: give no more than the {config.iterations} iterations there are")
    if config.label_noise is not None and not (_is_number(config.label_noise, (float,)) and config.label_noise < 1):
        raise MedicError(f"label_noise is {config.label_noise}: give a share between 0 and 1")
    if config.holdout is not None and (not _is_number(config.holdout, (float,)) or config.holdout >= 1):
        raise MedicError(f"holdout is {config.holdout}: give a share between 0 and 1")


def _is_number(value: Any, kinds: tuple[type, ...], zero: bool = False) -> bool:
    """Whether it is a finite number of these types above 0, or 0 where that is allowed."""
    number = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(cast(float, value))
    return number and (value > 0 or (zero and value == 0))


OVA = ("separate", "shared", "branches", "prompted")
"""Heads with one-vs-all outputs."""
NONLINEAR = {"reciprocal": "ARPL's are not", "branches": "those of EBiL's branches, behind dropout, are not"}
"""Heads whose logits are not linear in the features."""


def _check_penalties(model: ModelPlan, training: TrainingPlan) -> None:
    """Refuse penalties that would do nothing, or something else, on these tasks and this head."""
    grid = training.grid
    for part in model.objective.penalties:
        if not isinstance(part, Penalty):
            continue
        name = next(name for name, make in PENALTIES.items() if make is type(part))
        if part.ordered and (grid.pairing != "ordered" or len(grid.sizes) > 1):
            raise MedicError(f"penalty {name!r} remembers every domain, all in one step: use --method {name}")
        if part.compares and max(grid.sizes) < 2:
            raise MedicError(
                f"penalty {name!r} compares the tasks of a step, and there is one: use more domains or splits"
            )
        if training.batch_size < part.samples:
            raise MedicError(
                f"penalty {name!r} needs {part.samples} images of every task or more, not {training.batch_size}: "
                "raise --batch-size or --images"
            )
        if part.ova and model.head not in OVA:
            raise MedicError(
                f"penalty {name!r} needs a one-vs-all head, and {model.head!r} is none: add --objective ce+ova"
            )
        if part.linear and (model.head in NONLINEAR or model.networks > 1):
            whose = NONLINEAR.get(model.head, "those of several networks are not")
            raise MedicError(f"penalty {name!r} needs logits that are linear in the features, which {whose}")


def _check_networks(objective: str, grid: Grid, sources: int) -> None:
    """Refuse a grid that does not have every source domain as a task, in order, for the networks of an objective."""
    if OBJECTIVES[objective].networks == "one":
        return
    alone = grid.domains == math.prod(grid.splits.values()) == sources
    if not alone or grid.pairing != "ordered" or grid.sizes != (sources,) * 2:
        raise MedicError(
            f"objective {objective!r} has a network for every source domain, each of which is a task of two steps: "
            f"use --method {objective} and leave out --domain-splits, --class-splits, --axes and --steps"
        )
