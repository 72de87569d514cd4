"""The objective of a run: losses, penalty, strategy, and the hyperparameters of all parts."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import NONNEGATIVE, POSITIVE, Part, hyperparameters

if TYPE_CHECKING:
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind
    from medic.strategies import Strategy
    from medic.tasks import GridSpec


OPTIONS = ("lr", "weight_decay", "momentum", "batch_size", "iterations")
"""Hyperparameters of other codebases that have an option of their own here."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec(Spec):
    """The losses and penalty to minimise, and the inner steps that descend them."""

    objective: str | None = setting(
        None, "ce, ce+ova, ova, or a system's own: arpl, onering, … (default: the method's)"
    )
    penalty: str | None = setting(None, "term added to the risk: balance, vrex, coral, … (default: the method's)")
    hparams: dict[str, Any] | str | None = setting(
        None, "hyperparameters of the method: weight=10,ema=0.9 (`medic methods NAME` lists them)", takes="NAME=X,…"
    )
    hparams_seed: int = setting(
        0,
        "draw lr, weight decay, batch size and hyperparameters as DomainBed does; 0 for the defaults",
        limits=NONNEGATIVE,
        takes="N",
    )
    ova_scale: float | None = setting(
        None,
        "factor of the one-vs-all loss: 1 in the paper, 0.5 in its authors' code (default: 0.5)",
        limits=POSITIVE,
        takes="X",
    )
    ova_floor: float | None = setting(
        None,
        "added inside the logarithms of the one-vs-all loss: 1e-8 in the authors' code (default: 0)",
        limits=NONNEGATIVE,
        takes="X",
    )
    inner_lr: float | None = setting(
        None,
        "learning rate of the inner steps (default: the method's, or by starting point)",
        limits=POSITIVE,
        takes="RATE",
    )
    order: str | None = setting(
        None,
        "derivatives through the inner steps: first or second order (default: the method's)",
        choices=("first", "second"),
    )
    bn_buffers: str | None = setting(
        None,
        "batch-norm statistics after inner steps: keep, interpolate or restore (default: the method's)",
        choices=("keep", "interpolate", "restore"),
    )

    @property
    def kind(self) -> "ObjectiveKind":
        """The kind of objective by its name."""
        from medic.objectives import OBJECTIVES

        return OBJECTIVES[check_choice("objective", str(self.objective), OBJECTIVES)]

    @property
    def trains_ova(self) -> bool:
        """Whether the one-vs-all loss is part of the objective."""
        return any(loss.name == "ova" for loss in self.kind.losses)

    def completed(self, hparams: dict[str, Any], strategy: "Part[Strategy]") -> "ObjectiveSpec":
        """Return the complete spec: with all hyperparameters, and the settings of the strategy."""
        trained, inner = self.trains_ova, strategy.values.get("second_order")
        for name in ("ova_scale", "ova_floor"):
            if getattr(self, name) is not None and not trained:
                raise MedicError(f"{name} has no effect on objective {self.objective!r}: use --objective ce+ova or ova")
        return replace(
            self,
            hparams=hparams or None,
            ova_scale=float(self.ova_scale or 0.5) if trained else None,
            ova_floor=float(self.ova_floor or 0.0) if trained else None,
            inner_lr=strategy.values.get("lr"),
            order=None if inner is None else "second" if inner else "first",
            bn_buffers=strategy.values.get("bn_buffers"),
        )


Values = dict[str, dict[str, Any]]
"""Values of hyperparameters by part and name."""


def assign(parts: Iterable[Part[Any]], given: Mapping[str, Any], dataset: str, method: str) -> Values:
    """Assign given values to the hyperparameters of parts, and the defaults for a dataset to the others.

    A name that two parts share is given as `part.name`.
    """
    values: Values = {}
    for part in parts:
        declared = hyperparameters(part.kind)
        for name, default in part.hyperparameters(dataset).items():
            value = given.get(f"{part.name}.{name}", given.get(name, default))
            kind = type(declared[name].default) if declared[name].default is not None else type(default)
            values.setdefault(part.name, {})[name] = _converted(name, value, kind)
    for name in given:
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


def parse_hparams(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Parse `weight=10,anneal=500`, the same as JSON, or a mapping."""
    if not isinstance(given, str):
        return dict(given or {})
    try:
        if given.lstrip().startswith("{"):
            return dict(json.loads(given, object_pairs_hook=_once))
        pairs = [part.partition("=") for part in given.split(",")]
        return _once([(name.strip(), float(value)) for name, _, value in pairs])
    except MedicError:
        raise
    except (ValueError, RecursionError):
        raise MedicError(f"hparams {given!r}: give numbers by name, as in weight=10,anneal=500") from None


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
    if penalty.needs_ova and not head.ova:
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
