"""From what was asked of the tasks to the grid that they are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from medic.errors import MedicError, check_choice
from medic.runs.config import RunConfig
from medic.runs.plans.data import DataPlan
from medic.methods import METHODS, PENALTIES, Method
from medic.strategies import InnerLoop
from medic.tasks import Grid, Separation
from medic.training import derive


def plan_grid(config: RunConfig, method: Method, data: DataPlan) -> Grid:
    """The method's grid, no larger than the data, with what was asked for explicitly on top."""
    domains, classes = len(data.sources), min(len(data.classes.of_source(source)) for source in data.sources)
    if domains < method.least_domains:
        needs = f"method {method.name!r} needs {method.least_domains} source domains, and there are {domains}"
        others = [name for name, other in METHODS.items() if _works(other, domains, classes)]
        raise MedicError(f"{needs}: add some to --sources, or use a method such as {', '.join(others[:3])}")
    axes = parse_axes(config.axes)
    for axis in axes:
        if axis in method.grid.axes:
            raise MedicError(f"axis {axis!r} is one that method {method.name!r} makes itself: leave it out of --axes")
        if not data.opened.axes:
            raise MedicError(f"dataset {config.dataset!r} has no further axes, so {axis!r} cannot be split")
        check_choice("axis", axis, data.opened.axes)
    for axis, splits, there in (("domain", config.domain_splits, domains), ("class", config.class_splits, classes)):
        if splits is not None and splits > there:
            plural = "source domains" if axis == "domain" else "known classes"
            way = f"use --{axis}-splits {there} or fewer, or leave it out"
            raise MedicError(f"{splits} {axis} splits need {splits} {plural} or more, but there are {there}: {way}")
    grid = replace(method.grid, domains=domains) if method.each_domain else method.grid.fitted(domains, classes)
    if config.sampling == "balanced":  # an axis that is split into 1 is balanced, but not cut
        grid = replace(grid, domains=grid.domains or 1, classes=grid.classes or 1)
    resized = config.domain_splits is not None or config.class_splits is not None or bool(axes)
    planned = replace(
        grid,
        domains=_splits(config.domain_splits, grid.domains),
        classes=_splits(config.class_splits, grid.classes),
        axes={**method.grid.axes, **axes},
        steps=_kept_steps(grid, resized) if config.steps is None else _parse_steps(config.steps),
        repeat=config.repeat or grid.repeat,
        sampling=config.sampling or grid.sampling,
        separate=cast(Separation, config.separate or grid.separate),
        class_groups=config.class_groups or grid.class_groups,
        seed=derive(config.seed, "tasks"),
    )
    _check_options(config, planned)
    return planned


def _works(method: Method, domains: int, classes: int) -> bool:
    """Whether a method that splits domains has enough of them."""
    if method.grid.domains is None or domains < method.least_domains or method.each_domain:
        return False
    try:
        steps = len(method.grid.fitted(domains, classes).sizes)
        if isinstance(method.strategy, InnerLoop):
            method.strategy.check_steps(steps)
    except MedicError:
        return False
    return True


def _splits(given: int | None, own: int | None) -> int | None:
    """The splits of an axis, or None if it is none of the grid: 0 leaves it out, and nothing keeps the method's own."""
    return own if given is None else given or None


def written_splits(splits: int | None, own: int | None) -> int | None:
    """What says in a configuration that an axis has these splits, where a method has its own."""
    return 0 if splits is None and own is not None else splits


def _kept_steps(grid: Grid, resized: bool) -> int | Sequence[int] | None:
    """The steps of a grid: their sizes do not fit one that was resized, their number does."""
    return None if resized and not isinstance(grid.steps, int) else grid.steps


def _check_options(config: RunConfig, grid: Grid) -> None:
    """Refuse options that would do nothing on this grid."""
    for name in ("sampling", "class_groups"):
        if getattr(config, name) is not None and grid.classes is None:
            raise MedicError(f"{name} has no effect where classes are not split: add --class-splits")
    if grid.class_groups is not None and grid.classes is not None and grid.class_groups < grid.classes:
        raise MedicError(
            f"{grid.classes} class splits need as many groups of classes: use --class-groups {grid.classes} or more, "
            f"or --class-splits {grid.class_groups}"
        )
    if config.sampling not in (None, "random", "balanced") and grid.pairing == "ordered":
        penalty = METHODS[config.method].penalty
        movable = penalty is not None and not getattr(PENALTIES[penalty], "ordered", False)
        way = f"use --method reptile --penalty {penalty} --steps 1" if movable else "leave it out"
        raise MedicError(f"sampling has no effect on method {config.method!r}, whose tasks are always the same: {way}")
    if config.separate is not None and not grid.separates:
        raise MedicError(f"separate has no effect on method {config.method!r} with {len(grid.round)} steps")


def parse_axes(axes: Mapping[str, int] | str | None) -> dict[str, int]:
    """`hospital=2,year=3`, or a mapping."""
    if not isinstance(axes, str):
        return dict(axes or {})
    pairs = [part.partition("=") for part in axes.split(",")]
    if not all(name and splits.isdecimal() for name, _, splits in pairs):
        raise MedicError(f"axes {axes!r}: give names with their number of splits, as in hospital=2,year=3")
    return {name: int(splits) for name, _, splits in pairs}


def _parse_steps(steps: int | Sequence[int] | str | None) -> int | tuple[int, ...] | None:
    """`3,3,3` or a list of sizes, or a number of steps."""
    if steps is None or (isinstance(steps, int) and not isinstance(steps, bool)):
        return steps
    try:
        parts: Sequence[Any] = steps.split(",") if isinstance(steps, str) else list(cast(Sequence[int], steps))
        return tuple(int(str(part)) for part in parts)
    except (TypeError, ValueError):
        raise MedicError(f"steps {steps!r}: give the tasks of each step as in 3,3,3, or the number of steps") from None
