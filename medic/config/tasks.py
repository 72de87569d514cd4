"""The tasks of a run: how its samples are split, dealt over steps, and drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

from medic.config.fields import setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, NONNEGATIVE

if TYPE_CHECKING:
    from medic.systems.base import Method
    from medic.tasks import GridSpec

Separation = Literal["task", "step"]


class TaskSettings(TypedDict, total=False):
    """Settings for the tasks. All of them are optional."""

    batch_size: Annotated[
        int, setting("images per task", default_rule="--images divided by the tasks", limits=COUNT, takes="N")
    ]
    images: Annotated[
        int,
        setting("images per iteration, over all tasks", 144, default_rule="the method's", limits=COUNT, takes="N"),
    ]
    domain_splits: Annotated[
        int,
        setting(
            "parts that the source domains are split into; 0 pools them",
            default_rule="the method's",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    class_splits: Annotated[
        int,
        setting(
            "parts that the known classes are split into; 0 pools them",
            default_rule="the method's",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    steps: Annotated[
        int | list[int] | str,
        setting("tasks in each step, 3,3,3, or the number of steps", default_rule="the method's", takes="N,N,…"),
    ]
    repeat: Annotated[
        int,
        setting(
            "times that tasks and steps are drawn for one iteration",
            default_rule="the method's, 1",
            limits=COUNT,
            takes="N",
        ),
    ]
    sampling: Annotated[
        str,
        setting(
            "how classes are dealt over tasks: random, balanced, adaptive, probe, confusable, confusable-chain or "
            "informative",
            default_rule="the method's",
        ),
    ]
    axes: Annotated[
        dict[str, int] | str, setting("further axes of the grid with their splits: hospital=2,year=3", takes="NAME=N,…")
    ]
    separate: Annotated[
        Separation,
        setting(
            "whether tasks of one domain may share a step: task, they may, or step, they may not",
            default_rule="the method's",
        ),
    ]
    class_groups: Annotated[
        int, setting("split contiguous groups of classes instead of single ones", limits=COUNT, takes="N")
    ]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The grid of tasks, and the number of images per task."""

    batch_size: int
    domain_splits: int | None
    """0 or None if domains are pooled: 0 where the method itself splits them."""
    class_splits: int | None
    steps: list[int]
    repeat: int
    sampling: str | None
    """None if classes are not split."""
    axes: dict[str, int] | None
    separate: Separation | None
    """None if it makes no difference."""
    class_groups: int | None


def resolve_grid(
    settings: TaskSettings, method: "Method", domains: int, classes: int, axes: Sequence[str]
) -> "GridSpec":
    """Return the method's grid, no larger than the data, with the user's settings on top; `axes` are the data's."""
    splits = {"domain": settings.get("domain_splits"), "class": settings.get("class_splits")}
    further = parse_axes(settings.get("axes"))
    _check_axes(further, method, axes)
    for (axis, chosen), count in zip(splits.items(), (domains, classes), strict=True):
        if chosen is not None and chosen > count:
            plural = "source domains" if axis == "domain" else "known classes"
            raise MedicError(
                f"{chosen} {axis} splits need {chosen} {plural} or more, but there are {count}: "
                f"use --{axis}-splits {count} or fewer"
            )
    own = method.grid
    grid = replace(own, domains=domains) if method.each_domain else own.fitted(domains, classes)
    sampling = settings.get("sampling")
    if sampling == "balanced":  # an axis that is split into 1 is balanced but not cut
        grid = replace(grid, domains=grid.domains or 1, classes=grid.classes or 1)
    resized = any(chosen is not None for chosen in splits.values()) or bool(further)
    steps = None if resized and not isinstance(grid.steps, int) else grid.steps  # sizes do not fit a resized grid
    planned = replace(
        grid,
        domains=_splits(splits["domain"], grid.domains),
        classes=_splits(splits["class"], grid.classes),
        axes={**own.axes, **further},
        steps=parse_steps(settings["steps"]) if "steps" in settings else steps,
        repeat=settings.get("repeat", grid.repeat),
        sampling=sampling or grid.sampling,
        separate=settings.get("separate", grid.separate),
        class_groups=settings.get("class_groups", grid.class_groups),
    )
    _check_effects(settings, planned, method)
    return planned


def resolve_tasks(layered: Mapping[str, Any], settings: TaskSettings, grid: "GridSpec", method: "Method") -> TaskConfig:
    """Complete the settings of the tasks for a grid; `layered` are all settings, `settings` the user's own."""
    if "images" in settings and layered["batch_size"] is not None:
        raise MedicError(
            f"images {settings['images']} and batch_size {layered['batch_size']} determine each other: give one of them"
        )
    if settings.get("images", grid.tasks) < grid.tasks:
        raise MedicError(f"images is {settings['images']}: give at least one for each of the {grid.tasks} tasks")
    return TaskConfig(
        batch_size=layered["batch_size"] or max(1, layered["images"] // grid.tasks),
        domain_splits=_written(grid.domains, method.grid.domains),
        class_splits=_written(grid.classes, method.grid.classes),
        steps=list(grid.round),
        repeat=grid.repeat,
        sampling=None if grid.classes is None else grid.sampling,
        axes=parse_axes(settings.get("axes")) or None,
        separate=grid.separate if grid.separates else None,
        class_groups=grid.class_groups,
    )


def _check_axes(further: Mapping[str, int], method: "Method", axes: Sequence[str]) -> None:
    for axis in further:
        if axis in method.grid.axes:
            raise MedicError(f"axis {axis!r} is created by method {method.name!r} itself: leave it out of --axes")
        if not axes:
            raise MedicError(
                f"axes: the dataset has no attributes to split, so {axis!r} cannot be one: leave out --axes"
            )
        check_choice("axis", axis, axes)


def _check_effects(settings: TaskSettings, grid: "GridSpec", method: "Method") -> None:
    """Raise an error for settings that would have no effect on this grid."""
    for name in ("sampling", "class_groups"):
        if name in settings and grid.classes is None:
            raise MedicError(f"{name} has no effect unless classes are split: add --class-splits")
    if grid.class_groups is not None and grid.classes is not None and grid.class_groups < grid.classes:
        raise MedicError(
            f"{grid.classes} class splits need as many groups of classes: use --class-groups {grid.classes} or "
            f"more, or --class-splits {grid.class_groups}"
        )
    if settings.get("sampling", "random") not in ("random", "balanced") and grid.pairing == "ordered":
        from medic.objectives import PENALTIES

        penalty = method.preset.get("penalty")
        movable = penalty is not None and not PENALTIES[penalty].fixed_order
        way = f"use --method reptile --penalty {penalty} --steps 1" if movable else "leave out --sampling"
        raise MedicError(f"sampling has no effect on method {method.name!r}, whose tasks are fixed: {way}")
    if "separate" in settings and not grid.separates:
        raise MedicError(f"separate has no effect on method {method.name!r} with {len(grid.round)} steps: leave it out")


def _splits(chosen: int | None, own: int | None) -> int | None:
    """Return the splits of an axis, or None if it is pooled: 0 pools it, None keeps the method's own."""
    return own if chosen is None else chosen or None


def _written(splits: int | None, own: int | None) -> int | None:
    """Return the setting that gives an axis these splits, where a method has its own."""
    return 0 if splits is None and own is not None else splits


def parse_axes(axes: Mapping[str, int] | str | None) -> dict[str, int]:
    """Parse `hospital=2,year=3`, or a mapping."""
    if not isinstance(axes, str):
        return dict(axes or {})
    pairs = [part.partition("=") for part in axes.split(",")]
    if not all(name and splits.isdecimal() and len(splits) < 10 for name, _, splits in pairs):
        raise MedicError(f"axes {axes!r}: give names with their number of splits, as in hospital=2,year=3")
    return {name: int(splits) for name, _, splits in pairs}


def parse_steps(steps: int | Sequence[int] | str) -> int | tuple[int, ...]:
    """Parse `3,3,3` or a list of sizes, or a number of steps."""
    if isinstance(steps, int) and not isinstance(steps, bool):
        return steps
    try:
        parts: Sequence[Any] = steps.split(",") if isinstance(steps, str) else list(cast(Sequence[int], steps))
        return tuple(int(str(part)) for part in parts)
    except (TypeError, ValueError):
        raise MedicError(f"steps {steps!r}: give the tasks of each step as in 3,3,3, or the number of steps") from None
