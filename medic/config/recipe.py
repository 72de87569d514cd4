"""The recipe of a run: everything that determines its result, as one frozen value.

Settings are layers: defaults ← starting point ← protocol ← method ← penalty ← drawn hyperparameters ← user settings.
A recipe is complete and checked before anything is read or written, and can be built any number of times.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from medic.config.draws import domainbed_draws
from medic.config.execution import check_trackers
from medic.config.imports import execute
from medic.config.model import find_backbone
from medic.config.objective import assign, by_name, check_networks, check_penalty, parse_hparams
from medic.config.protocols import PROTOCOLS
from medic.config.settings import SETTINGS, RunSpec, check_settings, identity
from medic.config.specs import DataSpec, EvaluationSpec, ExecutionSpec, ModelSpec, ObjectiveSpec, OptimSpec, TaskSpec
from medic.config.starts import ADAM, STARTS, Start, find_start
from medic.data import BENCHMARK_GROUP, Benchmark, LazyDataset, benchmark
from medic.errors import MedicError, check_choice
from medic.methods import METHOD_GROUP, METHODS, find_method
from medic.models import HEADS, LAYERS, Aloft, MixStyle, find_weights, has_batch_norm
from medic.objectives import OBJECTIVES, PENALTIES, Change, Loss, Objective, Penalty
from medic.openset.registry import SCORE_GROUP
from medic.strategies import InnerLoop, Strategy
from medic.systems.base import Method, Rate
from medic.tasks import SAMPLERS, GridSpec, Sampler
from medic.training import AVERAGES, SAMPLER_CALLBACKS, Callback, WeightAverage
from medic.utils.parts import Law, Part, hyperparameters
from medic.utils.plugins import Plugin

DEFAULTS: Mapping[str, Any] = {"objective": "ce", "head_lr_scale": 1.0, "images": 144}
"""The lowest layer, below the settings of a starting point."""

_RATES = frozenset({"lr", "momentum", "weight_decay", "head_lr_scale"})
"""Settings whose value in a method's preset belongs to the method's own optimizer."""

COMPILED = 250_000
"""Images from which on compiling the network pays off if a similar one is in the cache."""

Open = Callable[[Benchmark, Path | None, int], LazyDataset]
"""Finds the images of a benchmark below a root, for a seed."""


def open_benchmark(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
    """Find the images of a benchmark."""
    return bench.open(root, seed)


def open_once() -> Open:
    """Return a function like `open_benchmark` that looks at every dataset only once."""
    found: dict[tuple[str, Path | None, int | None], LazyDataset] = {}

    def find(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
        key = (bench.name, root, seed if bench.seeded else None)
        if key not in found:
            found[key] = open_benchmark(bench, root, seed)
        return found[key]

    return find


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that a run is built of, with the values of their hyperparameters."""

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
        """Iterate over the parts in the order in which their hyperparameters are listed."""
        single = (self.objective, self.penalty, self.change, self.layer, self.strategy, self.sampler, self.averaging)
        return (part for part in (*self.losses, *single, *self.callbacks) if part is not None)

    def valued(self, objective: ObjectiveSpec, dataset: str, method: str) -> tuple["Parts", dict[str, Any]]:
        """Return the parts with the values of their hyperparameters, and these by name."""
        values = assign(self, parse_hparams(objective.hparams), dataset, method)

        def with_values(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(with_values, part))
            own = hyperparameters(part.kind) if part else ()
            return part and part.changed(**{name: v for name, v in values.get(part.name, {}).items() if name in own})

        parts = {field.name: with_values(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return replace(self, **parts), by_name(values)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete run: its specs, and the grid and parts that they describe."""

    run: RunSpec
    data: DataSpec
    model: ModelSpec
    tasks: TaskSpec
    objective: ObjectiveSpec
    optim: OptimSpec
    evaluation: EvaluationSpec
    execution: ExecutionSpec
    grid: GridSpec
    parts: Parts
    method: Method
    start: str
    """The name of its starting point."""
    search: Mapping[str, Law]
    """The search ranges of its hyperparameters."""
    weights: Path | None
    """The file of the backbone's weights."""
    asked: Mapping[str, Any]
    """The settings that were asked for."""
    plugins: tuple[Plugin, ...]
    """The code from outside of this package that it uses."""
    soup: tuple[str, ...] = ()
    """Hashes of the runs to average, the best first. Empty for a run that is trained."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, complete. A soup also has the hashes of its runs."""
        soup = {"soup": list(self.soup)} if self.soup else {}
        return {**{name: getattr(getattr(self, entry.group), name) for name, entry in SETTINGS.items()}, **soup}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that change the result."""
        return identity(self.settings)

    @property
    def seed(self) -> int:
        """The root of all random draws."""
        return self.run.seed

    @property
    def networks(self) -> int:
        """The number of networks of the model."""
        assert self.objective.objective is not None
        several = OBJECTIVES[self.objective.objective].networks == "domain"
        return len(self.data.sources or ()) if several else 1

    @property
    def batch_size(self) -> int:
        """The number of images per task."""
        assert self.tasks.batch_size is not None
        return self.tasks.batch_size

    def compiles(self, device: torch.device) -> bool:
        """Whether the network is compiled on a device: never through second derivatives or hooks inside it."""
        if _inspecting(self.parts) or self.model.freeze or _differentiates_twice(self.parts):
            return False
        images = self.optim.iterations * self.batch_size * self.grid.tasks
        auto = device.type == "cuda" and images >= COMPILED
        return self.execution.compile == "on" or (self.execution.compile == "auto" and auto)


def make_recipe(asked: Mapping[str, Any], find: Open = open_benchmark) -> tuple[Recipe, LazyDataset]:
    """Complete the settings that were asked for and check all of them, or raise with the one that is wrong.

    The setting `imports` names code, which is executed first. Returns the recipe, and the images that it was fitted to,
    which are found but not read.
    """
    given = check_settings(asked)
    imported = execute(given.get("imports") or ())
    if imported:
        given["imports"] = [plugin.name for plugin in imported]
    for name, named in (("method", find_method), ("dataset", benchmark)):
        if name in given:
            given[name] = named(given[name]).name  # in our spelling
    run, data, execution = RunSpec.of(given), DataSpec.of(given), ExecutionSpec.of(given)
    check_trackers(execution.track)
    execution.check(execution.pick_device())
    method = find_method(run.method)
    backbone = find_backbone(given.get("backbone"), method, data.benchmark)
    opened = find(data.benchmark, data.path, run.seed)
    data = data.completed(opened, backbone, "freeze" in given, run.seed)
    grid = _make_grid(given, method, data, opened)
    start = _find_start(given, backbone, data)
    settings = {**_layers(given, method, data, grid, STARTS[start]), "backbone": backbone, "method": method.name}
    optim = OptimSpec.of(settings).completed()
    objective = ObjectiveSpec.of(settings)
    model = ModelSpec.of(settings).completed(objective.kind, settings["objective"])
    tasks = TaskSpec.of({**settings, "images": given.get("images")}).completed(grid, method, settings["images"])
    parts, hparams = _make_parts(method, objective, model, optim, grid).valued(objective, data.dataset, method.name)
    inner_lr = _inner_lr(method, settings, STARTS[start], optim, data.benchmark.lr)
    strategy = _fit_strategy(parts.strategy, settings, given, grid, optim, inner_lr)
    evaluation = EvaluationSpec.of(settings).completed(objective.kind, model.head_kind, optim.iterations)
    groups = ((METHOD_GROUP, method.name), (BENCHMARK_GROUP, data.dataset), (SCORE_GROUP, evaluation.score))
    points = (group.sources[name] for group, name in groups if name in group.sources)
    recipe = Recipe(
        run=run,
        data=data,
        model=model,
        tasks=tasks,
        objective=objective.completed(hparams, strategy),
        optim=optim,
        evaluation=evaluation,
        execution=execution,
        grid=grid,
        parts=replace(parts, strategy=strategy),
        method=method,
        start=start,
        search=method_search(method, objective.penalty),
        weights=None,
        asked=given,
        plugins=tuple(dict.fromkeys((*imported, *points))),
    )
    _check(recipe)
    if model.weights is not None:  # last, because it may take a download
        recipe = replace(recipe, weights=find_weights(backbone, model.weights))
    return recipe, opened


def _find_start(given: Mapping[str, Any], backbone: str, data: DataSpec) -> str:
    """Return the name of the starting point; a protocol of the paper does not depend on it."""
    weights = None if "protocol" in given else given.get("weights")
    freeze = None if "protocol" in given else given.get("freeze")
    trained = weights is not None and freeze is None
    return find_start(weights, freeze, trained and has_batch_norm(backbone, data.image_size))


def _layers(given: Mapping[str, Any], method: Method, data: DataSpec, grid: GridSpec, start: Start) -> dict[str, Any]:
    """Combine the layers from the defaults up to what was asked for."""
    size, benchmark_lr = data.image_size or 0, data.benchmark.lr
    preset, of_start = dict(method.preset), start.settings(benchmark_lr)
    objective = preset.get("objective", DEFAULTS["objective"])
    if given.get("objective", objective) != objective:
        preset.pop("score", None)  # a method's score reads its own objective
    own = preset.get("optimizer", start.optimizer)
    optimizer = given.get("optimizer", own)
    if optimizer != start.optimizer:
        of_start |= ADAM
    if optimizer != own:
        preset = _without_rates(preset)
    penalty = preset.get("penalty") if given.get("penalty") is None else given["penalty"]
    of_penalty = {} if penalty is None else PENALTIES[check_choice("penalty", penalty, PENALTIES)].preset
    settings: dict[str, Any] = {}
    protocol: dict[str, Any] = {}
    if "protocol" in given:
        trains_ova = ObjectiveSpec(objective=given.get("objective", objective)).trains_ova
        protocol = PROTOCOLS[given["protocol"]].settings(data.dataset, trains_ova)
    for layer in (DEFAULTS, of_start, protocol, preset, of_penalty, given):
        at_size = {name: v.at(size) if isinstance(v, Rate) else v for name, v in layer.items()}
        settings |= {name: value for name, value in at_size.items() if value is not None}
    settings.setdefault("warmup", int(start.warmup * settings["iterations"]))
    search = method_search(method, penalty)
    return settings | domainbed_draws(given, settings, method, search, size, len(data.sources or ()), grid.tasks)


def _without_rates(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's preset for an optimizer that is not the method's own, to which its rates belong.

    An inner rate that follows the outer one keeps the method's value, because the inner optimizer stays the same.
    """
    kept = {name: value for name, value in preset.items() if name not in _RATES}
    if kept.get("inner_lr") == "lr":
        kept["inner_lr"] = preset["lr"]
    return kept


def _inner_lr(
    method: Method, settings: Mapping[str, Any], start: Start, optim: OptimSpec, benchmark_lr: float
) -> float | None:
    """Return the inner learning rate: as set, or as a multiple of the outer one; None for the strategy's own.

    Inner steps are plain SGD. With another outer optimizer, the inner rate is derived from the starting point's SGD
    rate.
    """
    inner: float | str | None = settings.get("inner_lr")
    if inner == "lr":
        return optim.lr
    if inner is not None:
        return float(inner)
    if start.inner is None or "lr" in method.strategy.values:
        return None
    outer = optim.lr if optim.optimizer == "sgd" else start.rate * benchmark_lr
    assert outer is not None
    return start.inner * outer


def method_search(method: Method, penalty: str | None) -> dict[str, Law]:
    """Return the search ranges of a method with a penalty."""
    parts = [method.strategy, method.change, None if penalty is None else Part(penalty, PENALTIES[penalty])]
    found = {name: law for part in parts if part is not None for name, law in part.search().items()}
    return {**found, **method.search}


def _make_grid(given: Mapping[str, Any], method: Method, data: DataSpec, opened: LazyDataset) -> GridSpec:
    """Return the grid of the tasks, fitted to the data."""
    sources = data.sources or []
    classes = min(len(data.classes.of_source(source)) for source in sources)
    if len(sources) < method.min_domains:
        others = [name for name, other in METHODS.items() if _works(other, len(sources), classes)]
        raise MedicError(
            f"method {method.name!r} needs {method.min_domains} source domains, but there are {len(sources)}: "
            f"add some to --sources, or use --method {' or '.join(others[:3])}"
        )
    grid = TaskSpec.of(given).grid(method, len(sources), classes, opened.axes)
    if "protocol" not in given:
        return grid
    counts = len(data.known or ()), len(data.unknown or ())
    return PROTOCOLS[given["protocol"]].fitted(grid, given, data.dataset, *counts)


def _works(method: Method, domains: int, classes: int) -> bool:
    """Whether a method that splits domains can do so with this number of them."""
    if method.grid.domains is None or domains < method.min_domains or method.each_domain:
        return False
    strategy = method.strategy.build()
    try:
        steps = len(method.grid.fitted(domains, classes).sizes)
        if isinstance(strategy, InnerLoop):
            strategy.check_steps(steps)
    except MedicError:
        return False
    return True


def _make_parts(method: Method, objective: ObjectiveSpec, model: ModelSpec, optim: OptimSpec, grid: GridSpec) -> Parts:
    """Return the parts that a method and the settings name."""
    assert objective.objective is not None
    kind = OBJECTIVES[objective.objective]
    splits = grid.classes is not None
    asks = [SAMPLER_CALLBACKS[grid.sampling]] if splits and grid.sampling in SAMPLER_CALLBACKS else []
    penalty = objective.penalty
    return Parts(
        strategy=method.strategy,
        objective=Part(objective.objective, kind.kind, {"passes": method.forward}),
        losses=kind.losses,
        penalty=None if penalty is None else Part(penalty, PENALTIES[penalty]),
        change=method.change,
        layer=LAYERS.get(model.layer or "none"),
        averaging=AVERAGES.get(optim.averaging or "none"),
        sampler=Part(grid.sampling, SAMPLERS[grid.sampling]) if splits else None,
        callbacks=(*([] if method.callback is None else [method.callback]), *asks),
    )


def method_parts(method: Method) -> Parts:
    """Return the parts that a method itself names, before they are fitted to data."""
    preset = {**DEFAULTS, **method.preset}
    objective, model = ObjectiveSpec.of(preset), ModelSpec.of(preset)
    optim = OptimSpec.of(preset)
    return _make_parts(method, objective, model, optim, method.grid)


def _fit_strategy(
    part: Part[Strategy],
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    grid: GridSpec,
    optim: OptimSpec,
    inner_lr: float | None,
) -> Part[Strategy]:
    """Return the strategy with the inner rate and the buffer policy of the run."""
    strategy = part.build()
    if not isinstance(strategy, InnerLoop):
        for name in {"inner_lr", "bn_buffers", "order"} & given.keys():
            raise MedicError(f"{name} has no effect on {part.name!r}, which has no inner steps: leave it out")
        return part
    if "order" in given and not hasattr(strategy, "second_order"):
        raise MedicError(f"order has no effect on {part.name!r}, which is of first order: leave it out")
    strategy.check_steps(len(grid.sizes))
    assert optim.lr is not None
    inner = part.changed(
        lr=strategy.lr if inner_lr is None else inner_lr, bn_buffers=settings.get("bn_buffers", strategy.bn_buffers)
    )
    if hasattr(strategy, "second_order"):
        inner = inner.changed(second_order=given["order"] == "second" if "order" in given else strategy.second_order)
    # Interpolated statistics move as far as the weights would by an outer SGD; Adam has no such fraction.
    factor = inner.build().interpolation_factor(optim.lr, grid.tasks)  # type: ignore[attr-defined]
    return inner.changed(bn_rate=factor)


def _inspecting(parts: Parts) -> str | None:
    """Return the part that works on images or inside the backbone, if there is one."""
    if parts.penalty is not None and getattr(parts.penalty.kind, "inspects_backbone", False):
        return f"penalty {parts.penalty.name!r}"
    return f"objective {parts.objective.name!r}" if getattr(parts.objective.kind, "inspects_backbone", False) else None


def _differentiates_twice(parts: Parts) -> bool:
    return bool(parts.strategy.values.get("second_order"))


def _check(recipe: Recipe) -> None:
    """Refuse combinations of specs that cannot work, or settings that would have no effect."""
    parts, model, given = recipe.parts, recipe.model, recipe.asked
    assert model.head is not None
    if given.get("momentum") is not None and recipe.optim.optimizer != "sgd":
        raise MedicError(f"momentum has no effect on optimizer {recipe.optim.optimizer!r}: use --optimizer sgd")
    if parts.penalty is not None:
        check_penalty(parts.penalty.name, recipe.grid, recipe.batch_size, HEADS[model.head], recipe.networks)
    if OBJECTIVES[parts.objective.name].networks == "domain":
        check_networks(parts.objective.name, recipe.grid, recipe.data.sources or ())
    for part in parts:
        if part.name not in ("ce", "ova") and part is not parts.objective:
            part.build()  # which checks its hyperparameters
    losses = [loss.build() for loss in parts.losses]
    parts.objective.build(losses=losses, change=None if parts.change is None else parts.change.build())
    for callback in parts.callbacks:
        callback.build().check(parts.objective.kind, recipe.grid)  # type: ignore[arg-type]
    _check_speed(recipe)


def _check_speed(recipe: Recipe) -> None:
    """Refuse to compile or freeze a network that parts of the method look into."""
    inside = _inspecting(recipe.parts)
    if recipe.execution.compile == "on":
        if _differentiates_twice(recipe.parts):
            name = recipe.method.name
            raise MedicError(f"compile 'on': method {name!r} needs second derivatives, which torch.compile lacks")
        if inside:
            raise MedicError(f"compile 'on': {inside} works inside the network, which then cannot be compiled")
    if recipe.model.freeze is None:
        return
    if recipe.evaluation.views > 1:
        raise MedicError(f"{recipe.evaluation.views} views have no effect on a frozen backbone: leave out --views")
    layer = f"layer {recipe.parts.layer.name!r}" if recipe.parts.layer is not None else None
    if part := layer or inside:
        raise MedicError(f"{part} works inside the backbone, which is frozen: leave out --freeze")
    if recipe.networks > 1:
        raise MedicError(f"objective {recipe.parts.objective.name!r} has several backbones: leave out --freeze")
