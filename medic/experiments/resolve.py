"""From what was asked for to what will run: defaults filled in, everything checked, nothing started."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch

from medic.data import benchmark, describe_recipe
from medic.errors import MedicError, check_choice
from medic.experiments.config import RunConfig
from medic.experiments.data_plan import DataPlan, Open, open_benchmark, plan_data
from medic.experiments.draws import with_draws
from medic.methods import (
    ADVISORS,
    AVERAGES,
    DOMAINBED_ADAM,
    LAYERS,
    OBJECTIVES,
    PENALTIES,
    Method,
    Numbers,
    Rate,
    find_method,
    make_objective,
)
from medic.models import HEADS, find_weights
from medic.models.aloft import Aloft
from medic.models.mixstyle import MixStyle
from medic.objectives import EbilHads, Objective, Penalty
from medic.openset import RULES, SCORES
from medic.strategies import BnBuffers, InnerLoop, Strategy
from medic.tasks import Grid, Separation
from medic.training import (
    Advisor,
    Capture,
    HardDomain,
    OptimizerName,
    OptimizerSettings,
    Precision,
    RateSchedule,
    Schedule,
    Swad,
    derive,
    pick_precision,
)


@dataclass(frozen=True)
class ModelPlan:
    """What is learnt, by which objective, and how it is read."""

    backbone: str
    weights: Path | None
    head: str
    networks: int
    objective: Objective
    score: str
    threshold: str
    layer: MixStyle | Aloft | None
    batch_norm: str
    frozen: bool
    device: torch.device
    precision: Precision
    capture: Capture
    compiled: bool


@dataclass(frozen=True)
class TrainingPlan:
    """How it is learnt."""

    grid: Grid
    strategy: Strategy
    batch_size: int
    optimizer: OptimizerSettings
    schedule: RateSchedule
    evaluate_every: int
    averaging: Swad | None
    advisors: Sequence[Advisor] = ()


@dataclass(frozen=True)
class Resolved:
    """A configuration with every default written out, and the values it stands for."""

    config: RunConfig
    data: DataPlan
    model: ModelPlan
    training: TrainingPlan


def resolve(config: RunConfig, find: Open = open_benchmark) -> Resolved:
    """Fill in what was left open and check all of it, or raise with the one thing that is wrong."""
    _check_numbers(config)
    bench, method = benchmark(config.dataset), find_method(config.method)
    backbone = config.backbone or method.backbone or bench.backbone
    if method.backbone not in (None, backbone):
        raise MedicError(f"method {method.name!r} works inside {method.backbone}: leave out --backbone {backbone}")
    data = plan_data(config, bench, backbone, pick_device(config.device), find)
    config = with_draws(config, method, data.size, len(data.sources), _plan_grid(config, method, data).tasks)
    numbers = Numbers(config.hparams)
    model = _plan_model(config, backbone, method, numbers, len(data.sources))
    training = _plan_training(config, method, data, numbers)
    numbers.check(method.name)
    _check_penalties(model, training.grid)
    _check_networks(config.objective or method.objective, training.grid, len(data.sources))
    _check_advisors(method.name, model, training)
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
        augment=describe_recipe(data.recipe),
        image_size=data.size,
        store_size=data.storage.size,
        axes=_parse_axes(config.axes) or None,  # those of the method's own are no part of the data
        backbone=model.backbone,
        head=model.head,
        objective=config.objective or method.objective,
        penalty=config.penalty or method.penalty,
        hparams=numbers.used or None,
        ova_scale=_ova_scale(config, method),
        separate=training.grid.separate if _separates(training.grid) else None,
        class_groups=training.grid.class_groups,
        score=model.score,
        threshold=model.threshold,
        domain_splits=_written(training.grid.domains, method.grid.domains),
        class_splits=_written(training.grid.classes, method.grid.classes),
        steps=list(training.grid.round),
        repeat=training.grid.repeat,
        sampling=None if training.grid.classes is None else training.grid.sampling,
        batch_size=training.batch_size,
        inner_lr=inner.lr if inner else None,
        bn_buffers=inner.bn_buffers if inner else None,
        optimizer=optimizer.name,
        lr=optimizer.lr,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        schedule=training.schedule.name,
        head_lr_scale=optimizer.head_lr_scale,
        layer=_layer(config, method),
        batch_norm=model.batch_norm,
        averaging=_averaging(config, method),
        evaluate_every=training.evaluate_every,
    )
    return Resolved(complete, data, model, training)


COUNTS = (
    "iterations",
    "batch_size",
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
    if config.label_noise is not None and not (_is_number(config.label_noise, (float,)) and config.label_noise < 1):
        raise MedicError(f"label_noise is {config.label_noise}: give a share between 0 and 1")
    if config.holdout is not None and (not _is_number(config.holdout, (float,)) or config.holdout >= 1):
        raise MedicError(f"holdout is {config.holdout}: give a share between 0 and 1")


def _is_number(value: Any, kinds: tuple[type, ...], zero: bool = False) -> bool:
    """Whether it is a finite number of these types above 0, or 0 where that is allowed."""
    number = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(cast(float, value))
    return number and (value > 0 or (zero and value == 0))


COMPILED = 250_000
"""Images from which on a compiled network pays, where one like it was compiled before; the first run takes longer."""


def _check_speed_options(config: RunConfig, device: torch.device) -> None:
    """Refuse options that would do nothing where there is no GPU."""
    if device.type != "cuda" and config.capture == "on":
        raise MedicError("capture 'on' makes CUDA graphs, and this run is not on a GPU; use --capture auto")
    if device.type != "cuda" and config.precision == "tf32":
        raise MedicError("precision 'tf32' is of GPUs, and this run is not on one; use fp32 or bf16")


def _compiles(config: RunConfig, method: Method, device: torch.device) -> bool:
    """Whether the network is compiled: not through second derivatives, which torch.compile does not take."""
    check_choice("compile", config.compile, ["auto", "on", "off"])
    twice = getattr(method.strategy, "second_order", False)
    if config.compile == "on" and twice:
        raise MedicError(f"compile 'on': method {method.name!r} differentiates twice, which torch.compile cannot do")
    if (part := _inside(config, method)) is not None:
        if config.compile == "on":
            raise MedicError(f"compile 'on': {part} looks inside the network, which then is not compiled")
        return False
    if config.freeze is not None:
        return False
    long = config.iterations * (config.batch_size or 16) * method.grid.tasks >= COMPILED
    return config.compile == "on" or (config.compile == "auto" and device.type == "cuda" and long and not twice)


def _inside(config: RunConfig, method: Method) -> str | None:
    """The part that looks at images or inside the backbone, if there is one."""
    penalty, objective = config.penalty or method.penalty, config.objective or method.objective
    if getattr(PENALTIES.get(penalty or ""), "inside", False):
        return f"the penalty {penalty!r}"
    return f"the objective {objective!r}" if getattr(OBJECTIVES[objective].kind, "inside", False) else None


def _check_penalties(model: ModelPlan, grid: Grid) -> None:
    """Refuse penalties that would do nothing, or something else, on this grid and this head."""
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
        if part.linear and (model.head == "reciprocal" or model.networks > 1):
            whose = "ARPL's are not" if model.head == "reciprocal" else "those of several networks are not"
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


def _check_advisors(method: str, model: ModelPlan, training: TrainingPlan) -> None:
    """Refuse to choose a domain that nothing measures, or that the grid cannot hold apart."""
    if not any(isinstance(advisor, HardDomain) for advisor in training.advisors):
        return
    if not isinstance(model.objective, EbilHads):
        raise MedicError(f"method {method!r} chooses domains by the follower of 'ebil': leave out --objective")
    if (training.grid.domains or 1) < 2:
        raise MedicError(f"method {method!r} holds a domain apart: use 2 domain splits or more")


def _plan_model(config: RunConfig, backbone: str, method: Method, numbers: Numbers, sources: int) -> ModelPlan:
    device = pick_device(config.device)
    _check_speed_options(config, device)
    objective = check_choice("objective", config.objective or method.objective, OBJECTIVES)
    heads = OBJECTIVES[objective].heads
    head = check_choice("head", config.head or heads[0], HEADS)
    if head not in heads:
        raise MedicError(f"head {head!r} does not go with objective {objective!r}, which trains {' or '.join(heads)}")
    score = _pick_score(config, method, objective)
    threshold = _pick_threshold(config, score)
    return ModelPlan(
        backbone,
        None,
        head,
        sources if OBJECTIVES[objective].networks == "domain" else 1,
        make_objective(
            objective,
            _ova_scale(config, method) or 1.0,
            method.forward,
            numbers,
            check_choice("penalty", config.penalty, PENALTIES) if config.penalty else method.penalty,
            method.change,
        ),
        score,
        threshold,
        None if (layer := _layer(config, method)) == "none" else numbers.make(layer, LAYERS[layer]),
        check_choice("batch_norm", config.batch_norm or method.batch_norm, ["local", "sync", "frozen"]),
        _freezes(config, method),
        device,
        pick_precision(check_choice("precision", config.precision, ["auto", *get_args(Precision)]), device),
        cast(Capture, check_choice("capture", config.capture, get_args(Capture))),
        _compiles(config, method, device),
    )


def _pick_score(config: RunConfig, method: Method, objective: str) -> str:
    """The score that was asked for, the method's, or what goes with the objective; it must find what it reads."""
    own = method.score if config.objective in (None, method.objective) else None
    score = check_choice("score", config.score or own or OBJECTIVES[objective].score, SCORES)
    if "ova" in SCORES[score].needs and "ova" not in OBJECTIVES[objective].losses:
        raise MedicError(f"score {score!r} needs a one-vs-all head: train with --objective ce+ova")
    if "unknown" in SCORES[score].needs and objective != "onering":
        raise MedicError(f"score {score!r} needs an output for unknown: train with --objective onering")
    return score


def _pick_threshold(config: RunConfig, name: str) -> str:
    """The rule that was asked for, or the system's own decision where it has one, or else `source`."""
    score = SCORES[name]
    rule = check_choice("threshold rule", config.threshold or ("hard" if score.rejects else "source"), RULES)
    if rule == "fixed" and not score.probability:
        raise MedicError(f"threshold 'fixed' is a probability and the score {name!r} is none: use cls or bcls")
    if rule == "hard" and not score.rejects:
        raise MedicError(f"threshold 'hard' is of systems that say unknown, which score {name!r} does not: use source")
    return rule


def _ova_scale(config: RunConfig, method: Method) -> float | None:
    """The factor of the one-vs-all loss, where it is trained: the authors' 0.5 unless another is asked for."""
    if "ova" in OBJECTIVES[config.objective or method.objective].losses:
        return float(config.ova_scale or 0.5)
    if config.ova_scale is not None:
        raise MedicError("ova_scale has no effect on objective 'ce': use ce+ova or ova")
    return None


def pick_device(name: str) -> torch.device:
    """A device by name: `auto` is a GPU where there is one."""
    check_choice("device", name, ["auto", "cpu", "cuda"])
    if name == "cuda" and not torch.cuda.is_available():
        raise MedicError("device 'cuda': this torch finds no GPU; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _plan_training(config: RunConfig, method: Method, data: DataPlan, numbers: Numbers) -> TrainingPlan:
    defaults = method.training
    own = config.optimizer in (None, defaults.optimizer)
    lr = config.lr or _at(defaults.lr if own else DOMAINBED_ADAM, data.size) or data.benchmark.lr
    inner_lr = config.inner_lr or (lr if defaults.inner_lr == "lr" else _at(defaults.inner_lr, data.size))
    grid = _plan_grid(config, method, data)
    schedule = check_choice("schedule", config.schedule or defaults.schedule, get_args(Schedule))
    every = 300 if config.iterations >= 1500 else max(1, config.iterations // 5)
    return TrainingPlan(
        grid,
        _plan_strategy(config, method, numbers, grid, lr, inner_lr),
        config.batch_size or max(1, defaults.images // grid.tasks),
        _plan_optimizer(config, method, lr),
        RateSchedule(cast(Schedule, schedule), config.iterations, config.warmup),
        config.evaluate_every or every,
        None if (averaging := _averaging(config, method)) == "none" else numbers.make(averaging, AVERAGES[averaging]),
        [] if method.advisor is None else [numbers.make(method.advisor, ADVISORS[method.advisor])],
    )


def _freezes(config: RunConfig, method: Method) -> bool:
    """Whether the head alone is trained; refuse what works inside the backbone."""
    if config.freeze is None:
        return False
    check_choice("part to freeze", config.freeze, ["backbone"])
    if config.views > 1:
        raise MedicError(f"{config.views} views have no effect on the features of a frozen backbone")
    if (layer := _layer(config, method)) != "none":
        raise MedicError(f"layer {layer!r} works inside the backbone, which is frozen: leave out --freeze")
    if (part := _inside(config, method)) is not None:
        raise MedicError(f"{part} works inside the backbone, which is frozen: leave out --freeze")
    objective = config.objective or method.objective
    if OBJECTIVES[objective].networks == "domain":
        raise MedicError(f"objective {objective!r} has a backbone for every domain: leave out --freeze, which has one")
    return True


def _layer(config: RunConfig, method: Method) -> str:
    """The name of what is put inside the backbone, or `none`."""
    return check_choice("layer", config.layer or method.layer or "none", ["none", *LAYERS])


def _averaging(config: RunConfig, method: Method) -> str:
    """The name of what is averaged, or `none`."""
    return check_choice("averaging", config.averaging or method.averaging or "none", ["none", *AVERAGES])


def _at(rate: float | Rate | str | None, image_size: int) -> float | None:
    """A rate for images of this size."""
    if isinstance(rate, Rate):
        return rate.at(image_size)
    return float(rate) if isinstance(rate, int | float) else None


def _plan_grid(config: RunConfig, method: Method, data: DataPlan) -> Grid:
    """The method's grid, no larger than the data, with what was asked for explicitly on top."""
    domains, classes = len(data.sources), min(len(data.classes.of_source(source)) for source in data.sources)
    if domains < method.least_domains:
        raise MedicError(f"method {method.name!r} needs {method.least_domains} source domains, and there are {domains}")
    axes = _parse_axes(config.axes)
    for axis in axes:
        if axis in method.grid.axes:
            raise MedicError(f"axis {axis!r} is one that method {method.name!r} makes itself: leave it out of --axes")
        if not data.opened.axes:
            raise MedicError(f"dataset {config.dataset!r} has no further axes, so {axis!r} cannot be split")
        check_choice("axis", axis, data.opened.axes)
    for axis, splits, there in (("domain", config.domain_splits, domains), ("class", config.class_splits, classes)):
        if splits is not None and splits > there:
            plural = "source domains" if axis == "domain" else "known classes"
            raise MedicError(f"{splits} {axis} splits need {splits} {plural} or more, but there are {there}")
    grid = replace(method.grid, domains=domains) if method.each_domain else method.grid.fitted(domains, classes)
    if config.sampling == "balanced":  # an axis that is split into 1 is balanced, but not cut
        grid = replace(grid, domains=grid.domains or 1, classes=grid.classes or 1)
    resized = config.domain_splits is not None or config.class_splits is not None or bool(axes)
    planned = replace(
        grid,
        domains=_splits(config.domain_splits, grid.domains),
        classes=_splits(config.class_splits, grid.classes),
        axes={**method.grid.axes, **axes},
        steps=_kept_steps(grid, resized) if config.steps is None else _parse_steps(config.steps),
        repeat=config.repeat or grid.repeat,
        sampling=config.sampling or grid.sampling,
        separate=cast(Separation, config.separate or grid.separate),
        class_groups=config.class_groups or grid.class_groups,
        seed=derive(config.seed, "tasks"),
    )
    _check_grid_options(config, planned)
    return planned


def _splits(given: int | None, own: int | None) -> int | None:
    """The splits of an axis, or None if it is none of the grid: 0 leaves it out, and nothing keeps the method's own."""
    return own if given is None else given or None


def _written(splits: int | None, own: int | None) -> int | None:
    """What says in a configuration that an axis has these splits, where a method has its own."""
    return 0 if splits is None and own is not None else splits


def _kept_steps(grid: Grid, resized: bool) -> int | Sequence[int] | None:
    """The steps of a grid: their sizes do not fit one that was resized, their number does."""
    return None if resized and not isinstance(grid.steps, int) else grid.steps


def _check_grid_options(config: RunConfig, grid: Grid) -> None:
    """Refuse options that would do nothing on this grid."""
    for name in ("sampling", "class_groups"):
        if getattr(config, name) is not None and grid.classes is None:
            raise MedicError(f"{name} has no effect where classes are not split: add --class-splits")
    if config.sampling not in (None, "random", "balanced") and grid.pairing == "ordered":
        raise MedicError(f"sampling has no effect on method {config.method!r}, whose tasks are always the same")
    if config.separate is not None and not _separates(grid):
        raise MedicError(f"separate has no effect on method {config.method!r} with {len(grid.round)} steps")


def _separates(grid: Grid) -> bool:
    """Whether it matters which of its tasks share a step."""
    return grid.pairing == "random" and len(grid.round) > 1


def _parse_axes(axes: Mapping[str, int] | str | None) -> dict[str, int]:
    """`hospital=2,year=3`, or a mapping."""
    if not isinstance(axes, str):
        return dict(axes or {})
    pairs = [part.partition("=") for part in axes.split(",")]
    if not all(name and splits.isdecimal() for name, _, splits in pairs):
        raise MedicError(f"axes {axes!r}: give names with their number of splits, as in hospital=2,year=3")
    return {name: int(splits) for name, _, splits in pairs}


def _parse_steps(steps: int | Sequence[int] | str | None) -> int | tuple[int, ...] | None:
    """`3,3,3` or a list of sizes, or a number of steps."""
    if steps is None or (isinstance(steps, int) and not isinstance(steps, bool)):
        return steps
    try:
        parts: Sequence[Any] = steps.split(",") if isinstance(steps, str) else list(cast(Sequence[int], steps))
        return tuple(int(str(part)) for part in parts)
    except (TypeError, ValueError):
        raise MedicError(f"steps {steps!r}: give the tasks of each step as in 3,3,3, or the number of steps") from None


def _plan_strategy(
    config: RunConfig, method: Method, numbers: Numbers, grid: Grid, lr: float, inner_lr: float | None
) -> Strategy:
    """A copy of the method's strategy, which starts without state, with the run's numbers, inner rate and buffers."""
    strategy = numbers.changed(method.name, method.strategy)
    if isinstance(strategy, InnerLoop):
        strategy.check_steps(len(grid.sizes))
        buffers = check_choice("bn_buffers", config.bn_buffers or strategy.bn_buffers, get_args(BnBuffers))
        # Statistics that are interpolated go the same share of the way as the weights do.
        changed = replace(
            strategy, lr=inner_lr or strategy.lr, bn_buffers=cast(BnBuffers, buffers), bn_rate=min(lr, 1.0)
        )
        return cast(Strategy, changed)
    for name in ("inner_lr", "bn_buffers"):
        if getattr(config, name) is not None:
            raise MedicError(f"method {method.name!r} has no inner steps, so {name} would do nothing")
    return strategy


def _plan_optimizer(config: RunConfig, method: Method, lr: float) -> OptimizerSettings:
    defaults = method.training
    name = check_choice("optimizer", config.optimizer or defaults.optimizer, get_args(OptimizerName))
    if name != "sgd" and config.momentum is not None:
        raise MedicError(f"momentum is an option of sgd, not of {name}")
    momentum = defaults.momentum if config.momentum is None else config.momentum
    own_decay = defaults.weight_decay if name == defaults.optimizer else 0.0
    return OptimizerSettings(
        cast(OptimizerName, name),
        float(lr),
        float(momentum) if name == "sgd" else None,
        float(own_decay if config.weight_decay is None else config.weight_decay),
        float(config.head_lr_scale or defaults.head_lr_scale),
    )
