"""Settings for the optimisation: iterations, optimizer, learning rates and weight averaging."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from medic.config.fields import setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, NONNEGATIVE, POSITIVE, Limits

Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["step", "cosine", "constant"]


class OptimSettings(TypedDict, total=False):
    """Settings for the optimizer and its schedule. All of them are optional."""

    iterations: Annotated[
        int,
        setting(
            "number of outer updates",
            default_rule="300, 1000 or 1200, set by the starting point",
            limits=COUNT,
            takes="N",
        ),
    ]
    optimizer: Annotated[
        Optimizer, setting("optimizer: sgd, adam or adamw", default_rule="set by the method or the starting point")
    ]
    lr: Annotated[
        float,
        setting(
            "learning rate",
            default_rule="set by the method, or by benchmark and starting point",
            limits=POSITIVE,
            takes="RATE",
        ),
    ]
    momentum: Annotated[
        float, setting("SGD momentum", default_rule="the method's", limits=Limits(0, 1, below=True), takes="X")
    ]
    weight_decay: Annotated[
        float,
        setting(
            "weight decay", default_rule="set by the method or the starting point", limits=NONNEGATIVE, takes="RATE"
        ),
    ]
    head_lr_scale: Annotated[
        float,
        setting(
            "learning rate of the head, as a multiple of the backbone's",
            1.0,
            default_rule="the method's, or 1",
            limits=POSITIVE,
            takes="X",
        ),
    ]
    layer_decay: Annotated[
        float,
        setting(
            "layer-wise learning-rate decay: factor per block, counted back from the head",
            1.0,
            default_rule="set by the starting point",
            limits=Limits(0, 1, above=True),
            takes="X",
        ),
    ]
    head_first: Annotated[
        int,
        setting(
            "iterations that train the head alone before the whole network (LP-FT)",
            default_rule="set by the starting point",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    clip_norm: Annotated[
        float,
        setting(
            "maximum gradient norm; 0 disables clipping",
            0.0,
            default_rule="set by the starting point",
            limits=NONNEGATIVE,
            takes="X",
        ),
    ]
    schedule: Annotated[
        Schedule,
        setting(
            "learning-rate schedule: step, cosine or constant", default_rule="set by the method or the starting point"
        ),
    ]
    warmup: Annotated[
        int,
        setting(
            "iterations of linear learning-rate warm-up",
            default_rule="set by the starting point",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    averaging: Annotated[
        str, setting("weight averaging for the final model: swad, tail, ema or none", default_rule="swad")
    ]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The outer optimizer, its schedule, and the weight averaging."""

    iterations: int
    optimizer: Optimizer
    lr: float
    momentum: float | None
    """None if the optimizer does not use momentum."""
    weight_decay: float
    head_lr_scale: float
    layer_decay: float
    head_first: int
    """Number of iterations that train the head alone."""
    clip_norm: float
    """Maximum gradient norm. 0 disables clipping."""
    schedule: Schedule
    warmup: int
    averaging: str


def resolve_optim(settings: Mapping[str, Any]) -> OptimConfig:
    """Resolve the optimisation settings. Learning rates must already be combined from all layers."""
    from medic.training import AVERAGES

    iterations, warmup = settings["iterations"], settings["warmup"]
    if warmup > iterations:
        raise MedicError(f"--warmup must be at most --iterations ({iterations}), got {warmup}")
    head_first = settings["head_first"]
    if head_first > iterations:
        raise MedicError(f"--head-first must be at most --iterations ({iterations}), got {head_first}")
    return OptimConfig(
        iterations=iterations,
        optimizer=settings["optimizer"],
        lr=float(settings["lr"]),
        momentum=float(settings["momentum"]) if settings["optimizer"] == "sgd" else None,
        weight_decay=float(settings["weight_decay"]),
        head_lr_scale=float(settings["head_lr_scale"]),
        layer_decay=float(settings["layer_decay"]),
        head_first=head_first,
        clip_norm=float(settings["clip_norm"]),
        schedule=settings["schedule"],
        warmup=warmup,
        averaging=check_choice("averaging", settings["averaging"], ["none", *AVERAGES]),
    )
