"""Settings for the tasks: how a batch is split into tasks, and tasks into steps."""

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
        int, setting("images per task", default_rule="--images divided by the number of tasks", limits=COUNT, takes="N")
    ]
    images: Annotated[
        int,
        setting(
            "images per iteration, summed over all tasks", 144, default_rule="the method's", limits=COUNT, takes="N"
        ),
    ]
    domain_splits: Annotated[
        int,
        setting(
            "number of parts to split the source domains into; 0 pools all domains",
            default_rule="the method's",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    class_splits: Annotated[
        int,
        setting(
            "number of parts to split the known classes into; 0 pools all classes",
            default_rule="the method's",
            limits=NONNEGATIVE,
            takes="N",
        ),
    ]
    steps: Annotated[
        int | list[int] | str,
        setting(
            "number of tasks in each step, such as 3,3,3, or the number of steps",
            default_rule="the method's",
            takes="N,N,…",
        ),
    ]
    repeat: Annotated[
        int,
        setting(
            "how often tasks and steps are drawn per iteration",
            default_rule="the method's, or 1",
            limits=COUNT,
            takes="N",
        ),
    ]
    sampling: Annotated[
        str,
        setting(
            "how classes are assigned to tasks: random, balanced, adaptive, probe, confusable, confusable-chain or "
            "informative",
            default_rule="the method's",
        ),
    ]
    axes: Annotated[
        dict[str, int] | str,
        setting("other attributes to split by, with the number of parts: hospital=2,year=3", takes="NAME=N,…"),
    ]
    separate: Annotated[
        Separation,
        setting(
            "whether tasks of the same domain may share a step: task (they may) or step (they may not)",
            default_rule="the method's",
        ),
    ]
    class_groups: Annotated[
        int, setting("split this many contiguous class groups instead of single classes", limits=COUNT, takes="N")
    ]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The task grid, and the number of images per task."""

    batch_size: int
    domain_splits: int | None
    """0 or None if domains are pooled. 0 overrides a method that splits them."""
    class_splits: int | None
    steps: list[int]
    repeat: int
    sampling: str | None
    """None if classes are not split."""
    axes: dict[str, int] | None
    separate: Separation | None
    """None if the setting has no effect."""
    class_groups: int | None


def resolve_grid(
    settings: TaskSettings, method: "Method", domains: int, classes: int, axes: Sequence[str]
) -> "GridSpec":
    """Return the method's grid, fitted to the data and overridden by the user. `axes` are the dataset's attributes."""
    splits = {"domain": settings.get("domain_splits"), "class": settings.get("class_splits")}
    further = parse_axes(settings.get("axes"))
    _check_axes(further, method, axes)
    for (axis, chosen), count in zip(splits.items(), (domains, classes), strict=True):
        if chosen is not None and chosen > count:
            plural = "source domains" if axis == "domain" else "known classes"
            raise MedicError(
                f"--{axis}-splits {chosen} requires at least {chosen} {plural}, got {count}: "
                f"use --{axis}-splits {count} or fewer"
            )
    own = method.grid
    grid = replace(own, domains=domains) if method.each_domain else own.fitted(domains, classes)
    sampling = settings.get("sampling")
    if sampling == "balanced":  # an axis with a single part is balanced but not split
        grid = replace(grid, domains=grid.domains or 1, classes=grid.classes or 1)
    resized = any(chosen is not None for chosen in splits.values()) or bool(further)
    steps = (
        None if resized and not isinstance(grid.steps, int) else grid.steps
    )  # explicit sizes do not fit a resized grid
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
    """Resolve the task settings for a grid. `layered` holds all settings, `settings` only the user's."""
    if "images" in settings and layered["batch_size"] is not None:
        raise MedicError(
            f"--images {settings['images']} and --batch-size {layered['batch_size']} determine each other: use only one"
        )
    if settings.get("images", grid.tasks) < grid.tasks:
        raise MedicError(f"--images must be at least the number of tasks ({grid.tasks}), got {settings['images']}")
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
            raise MedicError(f"method {method.name!r} creates axis {axis!r} itself: remove it from --axes")
        if not axes:
            raise MedicError(f"cannot split by {axis!r}, because the dataset has no attributes: omit --axes")
        check_choice("axis", axis, axes)


def _check_effects(settings: TaskSettings, grid: "GridSpec", method: "Method") -> None:
    """Raise an error for settings that have no effect on this grid."""
    for name in ("sampling", "class_groups"):
        if name in settings and grid.classes is None:
            raise MedicError(f"{name} requires a class split: add --class-splits")
    if grid.class_groups is not None and grid.classes is not None and grid.class_groups < grid.classes:
        raise MedicError(
            f"{grid.classes} class splits require at least as many class groups: use --class-groups {grid.classes} or "
            f"more, or --class-splits {grid.class_groups}"
        )
    if settings.get("sampling", "random") not in ("random", "balanced") and grid.pairing == "ordered":
        from medic.objectives import PENALTIES

        penalty = method.preset.get("penalty")
        movable = penalty is not None and not PENALTIES[penalty].fixed_order
        way = f"use --method reptile --penalty {penalty} --steps 1" if movable else "omit --sampling"
        raise MedicError(f"--sampling has no effect on method {method.name!r}, whose tasks are fixed: {way}")
    if "separate" in settings and not grid.separates:
        raise MedicError(
            f"--separate has no effect on method {method.name!r} with {len(grid.round)} steps: omit --separate"
        )


def _splits(chosen: int | None, own: int | None) -> int | None:
    """Return the number of parts along an axis, or None to pool it. `chosen`: 0 to pool, None for the method's own."""
    return own if chosen is None else chosen or None


def _written(splits: int | None, own: int | None) -> int | None:
    """Return the setting that produces this number of parts, given the method's own number."""
    return 0 if splits is None and own is not None else splits


def parse_axes(axes: Mapping[str, int] | str | None) -> dict[str, int]:
    """Parse axes from `hospital=2,year=3` or from a mapping."""
    if not isinstance(axes, str):
        return dict(axes or {})
    pairs = [part.partition("=") for part in axes.split(",")]
    if not all(name and splits.isdecimal() and len(splits) < 10 for name, _, splits in pairs):
        raise MedicError(f"--axes must be names with a number of parts, as in hospital=2,year=3, got {axes!r}")
    return {name: int(splits) for name, _, splits in pairs}


def parse_steps(steps: int | Sequence[int] | str) -> int | tuple[int, ...]:
    """Parse step sizes from `3,3,3` or a list, or the number of steps from an integer."""
    if isinstance(steps, int) and not isinstance(steps, bool):
        return steps
    try:
        parts: Sequence[Any] = steps.split(",") if isinstance(steps, str) else list(cast(Sequence[int], steps))
        return tuple(int(str(part)) for part in parts)
    except (TypeError, ValueError):
        raise MedicError(
            f"--steps must be the number of tasks in each step, as in 3,3,3, or the number of steps, got {steps!r}"
        ) from None
