"""The objective of a run: losses, penalty, strategy, and the hyperparameters of all parts."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medic.errors import MedicError, check_choice
from medic.fields import NONNEGATIVE, POSITIVE, Part, Spec, hyperparameters, setting

if TYPE_CHECKING:
    from medic.models.heads import Head
    from medic.tasks import GridSpec


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec(Spec):
    """The losses and penalty to minimise, and the inner steps that descend them."""

    objective: str | None = setting(
        None, "ce, ce+ova, ova, or a system's own: arpl, onering, … (default: the method's)"
    )
    penalty: str | None = setting(None, "term added to the risk: balance, vrex, coral, … (default: the method's)")
    hparams: dict[str, Any] | str | None = setting(
        None, "hyperparameters of the method: weight=10,ema=0.9 (`medic methods NAME` lists them)"
    )
    hparams_seed: int = setting(
        0,
        "draw lr, weight decay, batch size and hyperparameters as DomainBed does; 0 for the defaults",
        limits=NONNEGATIVE,
    )
    ova_scale: float | None = setting(
        None, "factor of the one-vs-all loss: 1 as in the paper (default: 0.5, the authors' code)", limits=POSITIVE
    )
    inner_lr: float | None = setting(None, "learning rate of the inner steps (default: the method's)", limits=POSITIVE)
    bn_buffers: str | None = setting(
        None,
        "batch-norm statistics after inner steps: keep, interpolate or restore (default: the method's)",
        choices=("keep", "interpolate", "restore"),
    )


class Hyperparameters:
    """The hyperparameters of some parts, by name; a name that two parts share is written `part.name`."""

    def __init__(self, parts: Iterable[Part[Any]], given: Mapping[str, Any] | str | None, dataset: str) -> None:
        """Assign given values to the parts, and the defaults for a dataset to the others."""
        self.parts, self.given = list(parts), parse_hparams(given)
        self._values: dict[tuple[str, str], Any] = {}
        for part in self.parts:
            declared = hyperparameters(part.kind)
            for name, default in part.hyperparameters(dataset).items():
                value = self.given.get(f"{part.name}.{name}", self.given.get(name, default))
                kind = type(declared[name].default) if declared[name].default is not None else type(default)
                self._values[part.name, name] = _converted(name, value, kind)

    def of(self, part: Part[Any]) -> Part[Any]:
        """Return a part with its values."""
        return part.changed(
            **{
                name: value
                for (owner, name), value in self._values.items()
                if owner == part.name and name in hyperparameters(part.kind)
            }
        )

    @property
    def used(self) -> dict[str, Any]:
        """All values, defaults included, by the names that tell them apart."""
        owners = Counter(name for _, name in self._values)
        return {name if owners[name] == 1 else f"{part}.{name}": value for (part, name), value in self._values.items()}

    def check(self, method: str) -> None:
        """Refuse names that no part declares, or that two parts share."""
        used = self.used
        for name in self.given:
            if not used:
                raise MedicError(
                    f"--hparams {name}: method {method!r} has no hyperparameters; `medic methods NAME` lists them"
                )
            owners = [part for part, own in self._values if own == name]
            if len(owners) > 1:
                raise MedicError(
                    f"--hparams {name} is a hyperparameter of {' and '.join(owners)}: write {owners[0]}.{name}"
                )
            if tuple(name.split(".", 1)) not in self._values:
                check_choice("hyperparameter", name, used, f"of method {method!r}")


def parse_hparams(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Parse `weight=10,anneal=500`, the same as JSON, or a mapping."""
    if not isinstance(given, str):
        return dict(given or {})
    try:
        if given.lstrip().startswith("{"):
            return dict(json.loads(given))
        pairs = [part.partition("=") for part in given.split(",")]
        return {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise MedicError(f"hparams {given!r}: give numbers by name, as in weight=10,anneal=500") from None


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
