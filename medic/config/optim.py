"""The optimisation of a run: iterations, optimizer, learning rates and weight averaging."""

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
        setting("outer updates", default_rule="300, 1000 or 1200, by starting point", limits=COUNT, takes="N"),
    ]
    optimizer: Annotated[Optimizer, setting("sgd, adam or adamw", default_rule="the method's, or by starting point")]
    lr: Annotated[
        float,
        setting(
            "learning rate",
            default_rule="the method's, or by benchmark and starting point",
            limits=POSITIVE,
            takes="RATE",
        ),
    ]
    momentum: Annotated[
        float, setting("momentum of sgd", default_rule="the method's", limits=Limits(0, 1, below=True), takes="X")
    ]
    weight_decay: Annotated[
        float,
        setting("weight decay", default_rule="the method's, or by starting point", limits=NONNEGATIVE, takes="RATE"),
    ]
    head_lr_scale: Annotated[
        float,
        setting(
            "learning rate of the heads relative to the backbone's",
            1.0,
            default_rule="the method's, 1",
            limits=POSITIVE,
            takes="X",
        ),
    ]
    layer_decay: Annotated[
        float,
        setting(
            "learning rate of each block relative to that of the next one, counted from the head",
            1.0,
            default_rule="by starting point",
            limits=Limits(0, 1, above=True),
            takes="X",
        ),
    ]
    head_first: Annotated[
        int,
        setting(
            "iterations in which the head alone is trained, before the rest (LP-FT)",
            default_rule="by starting point",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    clip_norm: Annotated[
        float,
        setting(
            "largest norm of the gradient; 0 does not limit it",
            0.0,
            default_rule="by starting point",
            limits=NONNEGATIVE,
            takes="X",
        ),
    ]
    schedule: Annotated[
        Schedule, setting("step, cosine or constant", default_rule="the method's, or by starting point")
    ]
    warmup: Annotated[
        int, setting("iterations of linear warm-up", default_rule="by starting point", limits=NONNEGATIVE, takes="N")
    ]
    averaging: Annotated[str, setting("average of weights as the result: swad, tail, ema or none", default_rule="swad")]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The outer optimizer, its schedule, and the averaging of weights."""

    iterations: int
    optimizer: Optimizer
    lr: float
    momentum: float | None
    """None if the optimizer has none."""
    weight_decay: float
    head_lr_scale: float
    layer_decay: float
    head_first: int
    """The number of iterations in which the head alone is trained."""
    clip_norm: float
    """0 if the gradient is not limited."""
    schedule: Schedule
    warmup: int
    averaging: str


def resolve_optim(settings: Mapping[str, Any]) -> OptimConfig:
    """Complete the settings of the optimisation; the rates have been layered before."""
    from medic.training import AVERAGES

    iterations, warmup = settings["iterations"], settings["warmup"]
    if warmup > iterations:
        raise MedicError(f"warmup is {warmup}: give at most the {iterations} iterations")
    head_first = settings["head_first"]
    if head_first > iterations:
        raise MedicError(f"head_first is {head_first}: give at most the {iterations} iterations")
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
