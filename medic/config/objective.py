"""Settings for the objective: losses, penalty, inner steps, and the hyperparameters of all parts."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from medic.config.fields import setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import NONNEGATIVE, POSITIVE, Part, hyperparameters

if TYPE_CHECKING:
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind
    from medic.strategies import Strategy
    from medic.tasks import GridSpec


OPTIONS = ("lr", "weight_decay", "momentum", "batch_size", "iterations")
"""Names that other codebases treat as hyperparameters, and that are separate options here."""


Order = Literal["first", "second"]
BnBuffers = Literal["keep", "interpolate", "restore"]


OVA_SCALE = 0.5
"""Default weight of the one-vs-all loss, as in the authors' code."""


class ObjectiveSettings(TypedDict, total=False):
    """Settings for the objective and the strategy. All of them are optional."""

    objective: Annotated[
        str,
        setting("loss: ce, ce+ova, ova, or a method's own, such as arpl or onering", "ce", default_rule="the method's"),
    ]
    penalty: Annotated[str, setting("penalty added to the loss: balance, vrex, coral, …", default_rule="the method's")]
    hparams: Annotated[
        dict[str, Any] | str,
        setting(
            "method hyperparameters, such as weight=10,ema=0.9 (`medic methods NAME` lists them)", takes="NAME=X,…"
        ),
    ]
    hparams_seed: Annotated[
        int,
        setting(
            "seed for drawing lr, weight decay, batch size and hyperparameters as DomainBed does; 0 uses the defaults",
            0,
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    ova_scale: Annotated[
        float,
        setting(
            "weight of the one-vs-all loss: 1 in the paper, 0.5 in the authors' code",
            default_rule=f"{OVA_SCALE}",
            limits=POSITIVE,
            takes="X",
        ),
    ]
    ova_floor: Annotated[
        float,
        setting(
            "constant added inside the logarithms of the one-vs-all loss: 1e-8 in the authors' code",
            default_rule="0",
            limits=NONNEGATIVE,
            takes="X",
        ),
    ]
    inner_lr: Annotated[
        float,
        setting(
            "learning rate of the inner steps",
            default_rule="set by the method or the starting point",
            limits=POSITIVE,
            takes="RATE",
        ),
    ]
    order: Annotated[
        Order, setting("order of the derivatives through the inner steps: first or second", default_rule="the method's")
    ]
    bn_buffers: Annotated[
        BnBuffers,
        setting(
            "batch-norm statistics after the inner steps: keep, interpolate or restore", default_rule="the method's"
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The losses and penalty to minimise, and the settings of the inner steps."""

    objective: str
    penalty: str | None
    hparams: dict[str, Any] | None
    """Hyperparameters of all parts by name. None if the method has no hyperparameters."""
    hparams_seed: int
    ova_scale: float | None
    """None, like `ova_floor`, if the objective has no one-vs-all loss."""
    ova_floor: float | None
    inner_lr: float | None
    """None, like `order` and `bn_buffers`, if the strategy has no inner steps."""
    order: Order | None
    bn_buffers: BnBuffers | None


def find_objective(name: str) -> "ObjectiveKind":
    """Return an objective by name."""
    from medic.objectives import OBJECTIVES

    return OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


def trains_ova(kind: "ObjectiveKind") -> bool:
    """Return whether an objective includes the one-vs-all loss."""
    return any(loss.name == "ova" for loss in kind.losses)


def resolve_objective(
    settings: Mapping[str, Any], hparams: dict[str, Any], strategy: "Part[Strategy]"
) -> ObjectiveConfig:
    """Resolve the objective settings, including all hyperparameters and the settings of the inner steps."""
    objective = settings["objective"]
    ova, second_order = trains_ova(find_objective(objective)), strategy.values.get("second_order")
    for name in ("ova_scale", "ova_floor"):
        if settings[name] is not None and not ova:
            raise MedicError(f"{name} requires --objective ce+ova or ova, got {objective!r}")
    return ObjectiveConfig(
        objective=objective,
        penalty=settings["penalty"],
        hparams=hparams or None,
        hparams_seed=settings["hparams_seed"],
        ova_scale=float(settings["ova_scale"] or OVA_SCALE) if ova else None,
        ova_floor=float(settings["ova_floor"] or 0.0) if ova else None,
        inner_lr=strategy.values.get("lr"),
        order=None if second_order is None else "second" if second_order else "first",
        bn_buffers=strategy.values.get("bn_buffers"),
    )


Values = dict[str, dict[str, Any]]
"""Hyperparameter values by part and name."""


def assign(
    parts: Iterable[Part[Any]], chosen: Mapping[str, Any], dataset: str, iterations: int | None, method: str
) -> Values:
    """Return the value of every hyperparameter: the chosen one, or the default for the dataset and run length.

    If two parts share a name, `chosen` must qualify it as `part.name`.
    """
    values: Values = {}
    for part in parts:
        declared = hyperparameters(part.kind)
        for name, default in part.hyperparameters(dataset, iterations).items():
            value = chosen.get(f"{part.name}.{name}", chosen.get(name, default))
            kind = type(declared[name].default) if declared[name].default is not None else type(default)
            values.setdefault(part.name, {})[name] = _converted(name, value, kind)
    for name in chosen:
        if not values:
            raise MedicError(f"--hparams {name}: method {method!r} has no hyperparameters: omit --hparams")
        owners = [part for part, own in values.items() if name in own]
        if len(owners) > 1:
            raise MedicError(
                f"--hparams {name} is ambiguous, both {' and '.join(owners)} have it: use {owners[0]}.{name}"
            )
        if name not in {f"{part}.{own}" for part, names in values.items() for own in names}:
            if name in OPTIONS:
                raise MedicError(f"--hparams {name}: {name} is a separate option, use --{name.replace('_', '-')}")
            check_choice("hyperparameter", name, by_name(values), f"of method {method!r}")
    return values


def by_name(values: Values) -> dict[str, Any]:
    """Return all values by name, qualified as `part.name` where parts share a name."""
    owners = Counter(name for names in values.values() for name in names)
    return {
        name if owners[name] == 1 else f"{part}.{name}": value
        for part, names in values.items()
        for name, value in names.items()
    }


def parse_hparams(hparams: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Parse hyperparameters from `weight=10,anneal=500`, from JSON, or from a mapping."""
    if not isinstance(hparams, str):
        return dict(hparams or {})
    try:
        if hparams.lstrip().startswith("{"):
            return dict(json.loads(hparams, object_pairs_hook=_once))
        pairs = [part.partition("=") for part in hparams.split(",")]
        return _once([(name.strip(), float(value)) for name, _, value in pairs])
    except MedicError:
        raise
    except (ValueError, RecursionError):
        raise MedicError(f"--hparams must be numbers by name, as in weight=10,anneal=500, got {hparams!r}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name, and raise an error for a repeated name."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise MedicError(f"--hparams sets {name} twice: remove one of them")
    return dict(pairs)


def _converted(name: str, value: Any, kind: type) -> Any:
    """Convert a hyperparameter to the type of its default."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MedicError(f"hparams {name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise MedicError(f"hparams {name} must be finite, got {value}")
    if kind is int and value != int(value):
        raise MedicError(f"hparams {name} must be a whole number, got {value}")
    return kind(value)


def check_penalty(name: str, grid: "GridSpec", batch_size: int, head: "type[Head]", networks: int) -> None:
    """Raise an error if a penalty does not work with these tasks and this head."""
    from medic.objectives import PENALTIES

    penalty = PENALTIES[name]
    if penalty.fixed_order and (grid.pairing != "ordered" or len(grid.sizes) > 1):
        raise MedicError(f"penalty {name!r} requires one task per domain, all in one step: use --method {name}")
    if penalty.compares_tasks and max(grid.sizes) < 2:
        raise MedicError(
            f"penalty {name!r} requires at least two tasks per step: use more source domains or --domain-splits"
        )
    if batch_size < penalty.min_samples:
        raise MedicError(
            f"penalty {name!r} requires at least {penalty.min_samples} images per task, got {batch_size}: "
            "raise --batch-size or --images"
        )
    if "ova" in penalty.needs and not head.ova:
        raise MedicError(f"penalty {name!r} requires a one-vs-all head: add --objective ce+ova")
    if penalty.needs_linear_head and (head.nonlinear or networks > 1):
        reason = head.nonlinear or "those of several networks are not"
        raise MedicError(f"penalty {name!r} requires logits that are linear in the features, but {reason}")


def check_networks(objective: str, grid: "GridSpec", sources: Sequence[str]) -> None:
    """Raise an error if an objective with several networks does not get one task per source domain, in order."""
    alone = grid.domains == math.prod(grid.splits.values()) == len(sources)
    if not alone or grid.pairing != "ordered" or grid.sizes != (len(sources),) * 2:
        raise MedicError(
            f"objective {objective!r} trains one network per source domain and requires the tasks of its own method: "
            f"use --method {objective}, and omit --domain-splits, --class-splits, --axes and --steps"
        )
