"""Resolution of user settings into a complete configuration and the parts that it names.

Settings are combined in layers: defaults ← starting point ← protocol ← method ← penalty ← drawn hyperparameters ← user
settings. The data are the user's choice, with defaults of the benchmark and, for augmentation, of the starting point.
Everything is resolved and checked before any image is read or any file is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from medic.config.checks import check_plan
from medic.config.config import Config
from medic.config.data import DataConfig, resolve_data, resolve_size
from medic.config.draws import domainbed_draws
from medic.config.evaluation import resolve_evaluation
from medic.config.execution import ExecutionConfig
from medic.config.imports import execute, local_code, local_entries
from medic.config.model import find_backbone, resolve_model
from medic.config.objective import (
    find_objective,
    parse_hparams,
    resolve_objective,
    trains_ova,
)
from medic.config.optim import OptimConfig, resolve_optim
from medic.config.parts import assign_hparams, find_parts, fit_strategy, search_ranges
from medic.config.plan import Plan
from medic.config.protocols import PROTOCOLS
from medic.config.run import RunConfig
from medic.config.settings import DEFAULTS, SETTINGS, check_settings, known_setting
from medic.config.sources import is_source, use_sources
from medic.config.starts import STARTS, Start, find_start
from medic.config.tasks import TaskSettings, resolve_grid, resolve_tasks
from medic.data import BENCHMARK_GROUP, Benchmark, LazyDataset, benchmark
from medic.errors import MedicError, check_choice, warn
from medic.methods import METHOD_GROUP, METHODS, find_method
from medic.models import find_weights, has_batch_norm
from medic.objectives import PENALTIES
from medic.openset.registry import SCORE_GROUP
from medic.strategies import InnerLoop
from medic.systems.base import Method, Rate
from medic.tasks import GridSpec
from medic.training import emulates_bf16, pick_device

_RATES = frozenset({"lr", "momentum", "weight_decay", "head_lr_scale"})
"""Preset values that are tuned for the method's own optimizer."""

_STARTING = frozenset({"backbone", "weights", "tune"})
"""Settings that determine the starting point."""

OpenDataset = Callable[[Benchmark, Path | None, int], LazyDataset]
"""Function that opens the dataset of a benchmark, given the benchmark, its root and a seed."""


def open_dataset(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
    """List the images of a benchmark."""
    return bench.open(root, seed)


def open_once() -> OpenDataset:
    """Return a variant of `open_dataset` that caches each dataset, so that its images are listed only once."""
    datasets: dict[tuple[str, Path | None, int | None], LazyDataset] = {}

    def find(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
        key = (bench.name, root, seed if bench.seeded else None)
        if key not in datasets:
            datasets[key] = open_dataset(bench, root, seed)
        return datasets[key]

    return find


def resolve(settings: Mapping[str, Any], open_dataset: OpenDataset = open_dataset) -> Plan:
    """Complete and check the user's settings, and look up everything that they name.

    Files and modules listed in `imports` are executed first. Images are listed but not read.
    """
    user = check_settings(settings)
    imported = execute(user.get("imports") or ())
    if imported:
        user["imports"] = [plugin.name for plugin in imported]
    imported += use_sources(user)
    for name, find in (("method", find_method), ("dataset", benchmark)):
        if name in user:
            user[name] = find(user[name]).name  # canonical spelling
    complete = _complete(DEFAULTS, user)
    execution = _resolve_execution(complete)
    method, bench = find_method(complete["method"]), benchmark(complete["dataset"])
    backbone = find_backbone(user.get("backbone"), method, bench)
    dataset = open_dataset(bench, None if complete["root"] is None else Path(complete["root"]), complete["seed"])
    size = resolve_size(complete["image_size"], bench, backbone)
    start = _find_start(user, backbone, size)
    data = resolve_data(complete, bench, dataset, size, STARTS[start].augment)
    grid = _resolve_grid(user, method, data, dataset)
    layered = _layer(user, method, bench, data, grid, STARTS[start])
    layered |= {"backbone": backbone, "method": method.name}
    optim, kind = resolve_optim(layered), find_objective(layered["objective"])
    model = resolve_model(layered, kind)
    tasks = resolve_tasks(layered, cast(TaskSettings, user), grid, method)
    penalty = layered["penalty"]
    parts = find_parts(method, layered["objective"], penalty, model.layer, optim.averaging, grid)
    chosen = parse_hparams(layered["hparams"])
    parts, hparams = assign_hparams(parts, chosen, data.dataset, optim.iterations, method.name)
    inner_lr = _inner_lr(layered["inner_lr"], method, STARTS[start], optim, bench.lr)
    parts = fit_strategy(parts, user, inner_lr, layered["bn_buffers"], optim.lr, grid)
    evaluation = resolve_evaluation(layered, kind, model.head_kind, optim.iterations)
    config = Config(
        run=RunConfig(**{name: layered[name] for name in ("method", "imports", "seed", "extend", "protocol")}),
        data=data,
        model=model,
        tasks=tasks,
        objective=resolve_objective(layered, hparams, parts.strategy),
        optim=optim,
        evaluation=evaluation,
        execution=execution,
    )
    named = ((METHOD_GROUP, method.name), (BENCHMARK_GROUP, data.dataset), (SCORE_GROUP, evaluation.score))
    installed = (group.sources[name] for group, name in named if name in group.sources)
    local = local_code(entry for entry in local_entries(config.settings) if not is_source(entry[1]))
    plan = Plan(
        config=config,
        user_settings=user,
        method=method,
        benchmark=bench,
        dataset=dataset,
        start=start,
        grid=grid,
        parts=parts,
        search=search_ranges(method, penalty, optim.iterations),
        weights=None,
        plugins=tuple(dict.fromkeys((*imported, *installed, *local))),
    )
    check_plan(plan)
    if model.weights is None:
        return plan
    return replace(plan, weights=find_weights(backbone, model.weights))  # last, because this may download a file


def _complete(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Combine layers of settings; later layers take priority. Settings in no layer are None."""
    complete: dict[str, Any] = dict.fromkeys(SETTINGS)
    for layer in layers:
        complete |= {name: value for name, value in layer.items() if value is not None}
    return complete


def _resolve_execution(settings: Mapping[str, Any]) -> ExecutionConfig:
    """Resolve the execution settings. Raise an error for settings that require a GPU if there is none."""
    names = [field.name for field in fields(ExecutionConfig)]
    config = ExecutionConfig(**{name: settings[name] for name in names})
    device = pick_device(config.device)
    if device.type != "cuda" and config.capture == "on":
        raise MedicError("--capture on requires a GPU: use --capture auto")
    if device.type != "cuda" and config.precision == "tf32":
        raise MedicError("--precision tf32 requires a GPU: use --precision fp32 or bf16")
    if config.precision == "bf16" and emulates_bf16(device):
        warn("this CPU emulates bf16, about a hundred times slower than fp32: use --precision fp32")
    return config


def _find_start(user: Mapping[str, Any], backbone: str, image_size: int) -> str:
    """Return the name of the starting point. The paper's protocols always use `scratch`."""
    weights = None if "protocol" in user else user.get("weights")
    tune = "all" if "protocol" in user else user.get("tune", "all")
    trained = weights is not None and tune != "head"
    return find_start(weights, tune, trained and has_batch_norm(backbone, image_size))


def _layer(
    user: Mapping[str, Any], method: Method, bench: Benchmark, data: DataConfig, grid: GridSpec, start: Start
) -> dict[str, Any]:
    """Combine the layers from the defaults to the user's settings."""
    preset = dict(method.preset)
    for name in preset:
        place = f"in the preset of method {method.name!r}"
        if SETTINGS[known_setting(name, place)].group in ("run", "data", "execution") or name in _STARTING:
            raise MedicError(f"setting {name!r} {place}: a method cannot choose it, only the user")
    own_objective = preset.get("objective", DEFAULTS["objective"])
    objective = user.get("objective", own_objective)
    if objective != own_objective:
        preset.pop("score", None)  # a method's score relies on its own objective
    # A preset with a learning rate but no optimizer means SGD.
    own_optimizer = preset.get("optimizer", "sgd" if preset.get("lr") is not None else start.optimizer)
    optimizer = user.get("optimizer", own_optimizer)
    of_start = {**start.settings(optimizer, bench.lr), "optimizer": optimizer}
    shares = {name: of_start.pop(name) for name in ("warmup", "head_first")}  # fractions of the iterations
    if optimizer != own_optimizer:
        preset = _without_rates(preset)
    if _at_size(preset, data.image_size).get("lr") is not None:
        of_start["clip_norm"] = 0.0  # clipping is tuned for the starting point's own rate
    penalty = user.get("penalty", preset.get("penalty"))
    of_penalty = {} if penalty is None else PENALTIES[check_choice("penalty", penalty, PENALTIES)].preset
    protocol: dict[str, Any] = {}
    if "protocol" in user:
        ova = trains_ova(find_objective(objective))
        protocol = PROTOCOLS[user["protocol"]].settings(data.dataset, ova)
    layers = (DEFAULTS, of_start, protocol, preset, of_penalty, user)
    layered = _complete(*(_at_size(layer, data.image_size) for layer in layers))
    for name, share in shares.items():
        if layered[name] is None:
            layered[name] = int(share * layered["iterations"])
    search = search_ranges(method, penalty)
    return layered | domainbed_draws(user, layered, method, search, data.image_size, len(data.sources), grid.tasks)


def _at_size(layer: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """Return settings with every size-dependent rate replaced by its value at this image size in pixels."""
    return {name: value.at(image_size) if isinstance(value, Rate) else value for name, value in layer.items()}


def _without_rates(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's preset without the rates tuned for its own optimizer, for use with another optimizer.

    An inner rate tied to the outer rate keeps the method's value, because the inner optimizer stays the same.
    """
    kept = {name: value for name, value in preset.items() if name not in _RATES}
    if kept.get("inner_lr") == "lr":
        kept["inner_lr"] = preset["lr"]
    return kept


def _inner_lr(
    inner_lr: float | str | None, method: Method, start: Start, optim: OptimConfig, benchmark_lr: float
) -> float | None:
    """Return the inner learning rate, or None for the strategy's own.

    Unless set explicitly, it is a multiple of the outer SGD rate. Inner steps are always plain SGD, so with a different
    outer optimizer, it is a multiple of the starting point's SGD rate.
    """
    if inner_lr == "lr":
        return optim.lr
    if inner_lr is not None:
        return float(inner_lr)
    if start.inner is None or "lr" in method.strategy.values:
        return None
    return start.inner * (optim.lr if optim.optimizer == "sgd" else start.rate * benchmark_lr)


def _resolve_grid(user: Mapping[str, Any], method: Method, data: DataConfig, dataset: LazyDataset) -> GridSpec:
    """Return the task grid, fitted to the data."""
    domains = len(data.sources)
    classes = min(len(data.classes.of_source(source)) for source in data.sources)
    if domains < method.min_domains:
        others = [name for name, other in METHODS.items() if _works(other, domains, classes)]
        raise MedicError(
            f"method {method.name!r} requires at least {method.min_domains} source domains, got {domains}: "
            f"add domains to --sources, or use --method {' or '.join(others[:3])}"
        )
    grid = resolve_grid(cast(TaskSettings, user), method, domains, classes, dataset.axes)
    if "protocol" not in user:
        return grid
    return PROTOCOLS[user["protocol"]].fitted(grid, user, data.dataset, len(data.known), len(data.unknown))


def _works(method: Method, domains: int, classes: int) -> bool:
    """Return whether a method splits domains and works with this number of domains and classes."""
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
