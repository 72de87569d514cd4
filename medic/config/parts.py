"""The parts that make up a run, such as strategy, objective and penalty, with their hyperparameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from medic.config.objective import assign, by_name
from medic.errors import MedicError
from medic.models import LAYERS, Aloft, MixStyle
from medic.objectives import OBJECTIVES, PENALTIES, Change, Loss, Objective, Penalty
from medic.strategies import InnerLoop, Strategy
from medic.systems.base import Method
from medic.tasks import SAMPLERS, GridSpec, Sampler
from medic.training import AVERAGES, SAMPLER_CALLBACKS, Callback, WeightAverage
from medic.utils.parts import Law, Part, hyperparameters


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that make up a run, with their hyperparameter values."""

    strategy: Part[Strategy]
    objective: Part[Objective]
    losses: tuple[Part[Loss], ...]
    penalty: Part[Penalty] | None
    change: Part[Change] | None
    layer: Part[MixStyle | Aloft] | None
    averaging: Part[WeightAverage] | None
    sampler: Part[Sampler] | None
    callbacks: tuple[Part[Callback], ...]

    def __iter__(self) -> Iterator[Part[Any]]:
        """Iterate over the parts in the order in which `medic methods` lists their hyperparameters."""
        single = (self.objective, self.penalty, self.change, self.layer, self.strategy, self.sampler, self.averaging)
        return (part for part in (*self.losses, *single, *self.callbacks) if part is not None)

    def build_objective(self, **ova: float | None) -> Objective:
        """Build the objective with its losses, penalty and change. `ova` holds arguments for the one-vs-all loss."""
        return self.objective.build(
            losses=[loss.build(**(ova if loss.name == "ova" else {})) for loss in self.losses],
            penalties=[] if self.penalty is None else [self.penalty.build()],
            change=None if self.change is None else self.change.build(),
        )

    @property
    def inspecting(self) -> str | None:
        """The penalty or objective that accesses images or the backbone's internals, if any."""
        if self.penalty is not None and getattr(self.penalty.kind, "inspects_backbone", False):
            return f"penalty {self.penalty.name!r}"
        inspects = getattr(self.objective.kind, "inspects_backbone", False)
        return f"objective {self.objective.name!r}" if inspects else None

    @property
    def second_order(self) -> bool:
        """Whether the strategy differentiates through its inner steps."""
        return bool(self.strategy.values.get("second_order"))


def find_parts(
    method: Method, objective: str, penalty: str | None, layer: str, averaging: str, grid: GridSpec
) -> Parts:
    """Return the parts of a method for the given settings."""
    kind = OBJECTIVES[objective]
    sampling = grid.sampling if grid.classes is not None else None
    callbacks = [part for part in (method.callback, SAMPLER_CALLBACKS.get(sampling or "")) if part is not None]
    return Parts(
        strategy=method.strategy,
        objective=Part(objective, kind.kind, {"passes": method.forward}),
        losses=kind.losses,
        penalty=None if penalty is None else Part(penalty, PENALTIES[penalty]),
        change=method.change,
        layer=LAYERS.get(layer),
        averaging=AVERAGES.get(averaging),
        sampler=None if sampling is None else Part(sampling, SAMPLERS[sampling]),
        callbacks=tuple(callbacks),
    )


def assign_hparams(
    parts: Parts, hparams: Mapping[str, Any], dataset: str, iterations: int | None, method: str
) -> tuple[Parts, dict[str, Any]]:
    """Return the parts with their hyperparameters set, and all hyperparameter values by name."""
    values = assign(parts, hparams, dataset, iterations, method)

    def with_values(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(with_values, part))
        own = hyperparameters(part.kind) if part else ()
        return part and part.changed(**{name: v for name, v in values.get(part.name, {}).items() if name in own})

    assigned = {field.name: with_values(getattr(parts, field.name)) for field in fields(parts)}
    return replace(parts, **assigned), by_name(values)


def fit_strategy(
    parts: Parts, user: Mapping[str, Any], inner_lr: float | None, bn_buffers: str | None, lr: float, grid: GridSpec
) -> Parts:
    """Return the parts with the run's inner learning rate, order and batch-norm buffers set on the strategy.

    None keeps the strategy's own value. User settings that would have no effect raise an error.
    """
    part = parts.strategy
    strategy = part.build()
    if not isinstance(strategy, InnerLoop):
        for name in {"inner_lr", "bn_buffers", "order"} & user.keys():
            raise MedicError(f"{name} has no effect on {part.name!r}, which has no inner steps: omit it")
        return parts
    if "order" in user and not hasattr(strategy, "second_order"):
        raise MedicError(f"order has no effect on {part.name!r}, which is always first-order: omit it")
    strategy.check_steps(len(grid.sizes))
    inner = part.changed(lr=strategy.lr if inner_lr is None else inner_lr, bn_buffers=bn_buffers or strategy.bn_buffers)
    if hasattr(strategy, "second_order"):
        inner = inner.changed(second_order=user["order"] == "second" if "order" in user else strategy.second_order)
    # Interpolated statistics move by the same fraction as the weights under an outer SGD; Adam has no such fraction.
    factor = inner.build().interpolation_factor(lr, grid.tasks)  # type: ignore[attr-defined]
    return replace(parts, strategy=inner.changed(bn_rate=factor))


def search_ranges(method: Method, penalty: str | None, iterations: int | None = None) -> dict[str, Law]:
    """Return the search ranges for the hyperparameters of a method and a penalty, for a number of iterations.

    Without `iterations`, they are DomainBed's.
    """
    parts = [method.strategy, method.change, None if penalty is None else Part(penalty, PENALTIES[penalty])]
    ranges = {name: law for part in parts if part is not None for name, law in part.search(iterations).items()}
    return {**ranges, **method.search}
