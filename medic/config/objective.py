"""The objective of a run: losses, penalty, strategy, and the hyperparameters of all parts."""

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
"""Hyperparameters of other codebases that have an option of their own here."""


Order = Literal["first", "second"]
BnBuffers = Literal["keep", "interpolate", "restore"]


OVA_SCALE = 0.5
"""The default factor of the one-vs-all loss, that of the authors' code."""


class ObjectiveSettings(TypedDict, total=False):
    """Settings for the objective and the strategy. All of them are optional."""

    objective: Annotated[
        str, setting("ce, ce+ova, ova, or a system's own: arpl, onering, …", "ce", default_rule="the method's")
    ]
    penalty: Annotated[str, setting("term added to the risk: balance, vrex, coral, …", default_rule="the method's")]
    hparams: Annotated[
        dict[str, Any] | str,
        setting("hyperparameters of the method: weight=10,ema=0.9 (`medic methods NAME` lists them)", takes="NAME=X,…"),
    ]
    hparams_seed: Annotated[
        int,
        setting(
            "draw lr, weight decay, batch size and hyperparameters as DomainBed does; 0 for the defaults",
            0,
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    ova_scale: Annotated[
        float,
        setting(
            "factor of the one-vs-all loss: 1 in the paper, 0.5 in its authors' code",
            default_rule=f"{OVA_SCALE}",
            limits=POSITIVE,
            takes="X",
        ),
    ]
    ova_floor: Annotated[
        float,
        setting(
            "added inside the logarithms of the one-vs-all loss: 1e-8 in the authors' code",
            default_rule="0",
            limits=NONNEGATIVE,
            takes="X",
        ),
    ]
    inner_lr: Annotated[
        float,
        setting(
            "learning rate of the inner steps",
            default_rule="the method's, or by starting point",
            limits=POSITIVE,
            takes="RATE",
        ),
    ]
    order: Annotated[
        Order, setting("derivatives through the inner steps: first or second order", default_rule="the method's")
    ]
    bn_buffers: Annotated[
        BnBuffers,
        setting("batch-norm statistics after inner steps: keep, interpolate or restore", default_rule="the method's"),
    ]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The losses and penalty to minimise, and the inner steps that descend them."""

    objective: str
    penalty: str | None
    hparams: dict[str, Any] | None
    """The hyperparameters of all parts by name; None if the method has none."""
    hparams_seed: int
    ova_scale: float | None
    """None, like `ova_floor`, if the one-vs-all loss is not trained."""
    ova_floor: float | None
    inner_lr: float | None
    """None, like the two below, if the strategy has no inner steps."""
    order: Order | None
    bn_buffers: BnBuffers | None


def find_objective(name: str) -> "ObjectiveKind":
    """Return a kind of objective by name."""
    from medic.objectives import OBJECTIVES

    return OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


def trains_ova(kind: "ObjectiveKind") -> bool:
    """Return whether the one-vs-all loss is part of an objective."""
    return any(loss.name == "ova" for loss in kind.losses)


def resolve_objective(
    settings: Mapping[str, Any], hparams: dict[str, Any], strategy: "Part[Strategy]"
) -> ObjectiveConfig:
    """Complete the settings of the objective, with all hyperparameters and the values of the strategy."""
    objective = settings["objective"]
    ova, second_order = trains_ova(find_objective(objective)), strategy.values.get("second_order")
    for name in ("ova_scale", "ova_floor"):
        if settings[name] is not None and not ova:
            raise MedicError(f"{name} has no effect on objective {objective!r}: use --objective ce+ova or ova")
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
"""Values of hyperparameters by part and name."""


def assign(parts: Iterable[Part[Any]], chosen: Mapping[str, Any], dataset: str, method: str) -> Values:
    """Assign chosen values to the hyperparameters of parts, and the defaults for a dataset to the others.

    A name that two parts share is given as `part.name`.
    """
    values: Values = {}
    for part in parts:
        declared = hyperparameters(part.kind)
        for name, default in part.hyperparameters(dataset).items():
            value = chosen.get(f"{part.name}.{name}", chosen.get(name, default))
            kind = type(declared[name].default) if declared[name].default is not None else type(default)
            values.setdefault(part.name, {})[name] = _converted(name, value, kind)
    for name in chosen:
        if not values:
            raise MedicError(
                f"--hparams {name}: method {method!r} has no hyperparameters; `medic methods NAME` lists them"
            )
        owners = [part for part, own in values.items() if name in own]
        if len(owners) > 1:
            raise MedicError(
                f"--hparams {name} is a hyperparameter of {' and '.join(owners)}: write {owners[0]}.{name}"
            )
        if name not in {f"{part}.{own}" for part, names in values.items() for own in names}:
            if name in OPTIONS:
                raise MedicError(f"--hparams {name}: {name} has an option of its own, use --{name.replace('_', '-')}")
            check_choice("hyperparameter", name, by_name(values), f"of method {method!r}")
    return values


def by_name(values: Values) -> dict[str, Any]:
    """Return all values by the names that tell them apart."""
    owners = Counter(name for names in values.values() for name in names)
    return {
        name if owners[name] == 1 else f"{part}.{name}": value
        for part, names in values.items()
        for name, value in names.items()
    }


def parse_hparams(hparams: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Parse `weight=10,anneal=500`, the same as JSON, or a mapping."""
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
        raise MedicError(f"hparams {hparams!r}: give numbers by name, as in weight=10,anneal=500") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name, each of which is given once."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise MedicError(f"--hparams {name} is given twice: leave one out")
    return dict(pairs)


def _converted(name: str, value: Any, kind: type) -> Any:
    """Convert a number to the type of its default."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MedicError(f"hparams {name} is {value!r}: give a number")
    if not math.isfinite(value):
        raise MedicError(f"hparams {name} is {value}: give a finite number")
    if kind is int and value != int(value):
        raise MedicError(f"hparams {name} is {value}: give a whole number")
    return kind(value)


def check_penalty(name: str, grid: "GridSpec", batch_size: int, head: "type[Head]", networks: int) -> None:
    """Refuse a penalty that would do nothing, or something else, with these tasks and this head."""
    from medic.objectives import PENALTIES

    penalty = PENALTIES[name]
    if penalty.fixed_order and (grid.pairing != "ordered" or len(grid.sizes) > 1):
        raise MedicError(f"penalty {name!r} needs every domain as a task, all in one step: use --method {name}")
    if penalty.compares_tasks and max(grid.sizes) < 2:
        raise MedicError(
            f"penalty {name!r} compares the tasks of a step, which has only one: use more domains or --domain-splits"
        )
    if batch_size < penalty.min_samples:
        raise MedicError(
            f"penalty {name!r} needs at least {penalty.min_samples} images per task, not {batch_size}: "
            "raise --batch-size or --images"
        )
    if "ova" in penalty.needs and not head.ova:
        raise MedicError(f"penalty {name!r} needs a one-vs-all head: add --objective ce+ova")
    if penalty.needs_linear_head and (head.nonlinear or networks > 1):
        reason = head.nonlinear or "those of several networks are not"
        raise MedicError(f"penalty {name!r} needs logits that are linear in the features, but {reason}")


def check_networks(objective: str, grid: "GridSpec", sources: Sequence[str]) -> None:
    """Refuse a grid that has not every source domain as a task, in order, for an objective of several networks."""
    alone = grid.domains == math.prod(grid.splits.values()) == len(sources)
    if not alone or grid.pairing != "ordered" or grid.sizes != (len(sources),) * 2:
        raise MedicError(
            f"objective {objective!r} has a network per source domain, each a task of two steps: "
            f"use --method {objective} and leave out --domain-splits, --class-splits, --axes and --steps"
        )
