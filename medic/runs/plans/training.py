"""From what was asked of the training to how the model is learnt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

from medic.errors import MedicError, check_choice
from medic.runs.config import RunConfig
from medic.runs.plans.data import DataPlan
from medic.runs.plans.grid import plan_grid
from medic.methods import ADVISORS, AVERAGES, DOMAINBED_ADAM, Method, Numbers, Rate
from medic.strategies import BnBuffers, InnerLoop, Strategy
from medic.tasks import SAMPLERS, Grid
from medic.training import Advisor, OptimizerName, OptimizerSettings, RateSchedule, Schedule, Swad
from medic.training.advisors import OF_SAMPLERS

CONVENTIONS = ("decay", "lag")
"""Arguments of samplers that are the same in all runs (docs/design.md), and no numbers of theirs."""


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


def plan_training(config: RunConfig, method: Method, data: DataPlan, numbers: Numbers) -> TrainingPlan:
    """What a configuration says of the training, on these data."""
    defaults = method.training
    if config.images is not None and config.batch_size is not None:
        raise MedicError(f"images {config.images} and batch_size {config.batch_size} say the same: give one of them")
    own = config.optimizer in (None, defaults.optimizer)
    lr = config.lr or _at(defaults.lr if own else DOMAINBED_ADAM, data.size) or data.benchmark.lr
    inner_lr = config.inner_lr or (lr if defaults.inner_lr == "lr" else _at(defaults.inner_lr, data.size))
    grid = plan_grid(config, method, data)
    _plan_sampler(grid, numbers)
    if config.images is not None and config.images < grid.tasks and config.batch_size is None:
        raise MedicError(f"images is {config.images}: there are {grid.tasks} tasks, so give as many or more")
    schedule = check_choice("schedule", config.schedule or defaults.schedule, get_args(Schedule))
    every = 300 if config.iterations >= 1500 else max(1, config.iterations // 5)
    return TrainingPlan(
        grid,
        _plan_strategy(config, method, numbers, grid, lr, inner_lr),
        config.batch_size or max(1, (config.images or defaults.images) // grid.tasks),
        _plan_optimizer(config, method, lr),
        RateSchedule(cast(Schedule, schedule), config.iterations, config.warmup),
        config.evaluate_every or every,
        None if method.averaging is None else numbers.make(method.averaging, AVERAGES[method.averaging]),
        _plan_advisors(method, grid, numbers),
    )


def _plan_sampler(grid: Grid, numbers: Numbers) -> None:
    """Give a grid that splits classes a sampler with the run's numbers."""
    if grid.classes is not None:
        grid.sampler = numbers.make(grid.sampling, SAMPLERS[grid.sampling], CONVENTIONS)


def _plan_advisors(method: Method, grid: Grid, numbers: Numbers) -> list[Advisor]:
    """What the method and the sampler ask the model by."""
    own = [] if method.advisor is None else [numbers.make(method.advisor, ADVISORS[method.advisor])]
    asks = grid.classes is not None and grid.sampling in OF_SAMPLERS
    return [*own, *([numbers.make(grid.sampling, OF_SAMPLERS[grid.sampling])] if asks else [])]


def _at(rate: float | Rate | str | None, image_size: int) -> float | None:
    """A rate for images of this size."""
    if isinstance(rate, Rate):
        return rate.at(image_size)
    return float(rate) if isinstance(rate, int | float) else None


def _plan_strategy(
    config: RunConfig, method: Method, numbers: Numbers, grid: Grid, lr: float, inner_lr: float | None
) -> Strategy:
    """A copy of the method's strategy, which starts without state, with the run's numbers, inner rate and buffers."""
    strategy = numbers.changed(method.name, method.strategy)
    if isinstance(strategy, InnerLoop):
        strategy.check_steps(len(grid.sizes))
        buffers = check_choice("bn_buffers", config.bn_buffers or strategy.bn_buffers, get_args(BnBuffers))
        # Statistics that are interpolated go as far as weights would by an outer SGD; by Adam there is no such share.
        changed = replace(strategy, lr=inner_lr or strategy.lr, bn_buffers=cast(BnBuffers, buffers))
        return cast(Strategy, replace(changed, bn_rate=changed.share(lr, grid.tasks)))
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
