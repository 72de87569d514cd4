"""The tasks of a run: how its samples are split, dealt over steps, and drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, NONNEGATIVE

if TYPE_CHECKING:
    from medic.systems.base import Method
    from medic.tasks import GridSpec


@dataclass(frozen=True, kw_only=True)
class TaskSpec(Spec):
    """The grid of tasks, and the number of images per task."""

    batch_size: int | None = setting(
        None, "images per task (default: --images divided by the tasks)", limits=COUNT, takes="N"
    )
    images: int | None = setting(
        None, "images per iteration, over all tasks (default: the method's)", limits=COUNT, takes="N"
    )
    domain_splits: int | None = setting(
        None,
        "parts that the source domains are split into; 0 pools them (default: the method's)",
        limits=NONNEGATIVE,
        takes="N",
    )
    class_splits: int | None = setting(
        None,
        "parts that the known classes are split into; 0 pools them (default: the method's)",
        limits=NONNEGATIVE,
        takes="N",
    )
    steps: int | list[int] | str | None = setting(
        None, "tasks in each step, 3,3,3, or the number of steps (default: the method's)", takes="N,N,…"
    )
    repeat: int | None = setting(
        None,
        "times that tasks and steps are drawn for one iteration (default: the method's, 1)",
        limits=COUNT,
        takes="N",
    )
    sampling: str | None = setting(
        None,
        "how classes are dealt over tasks: random, balanced, adaptive, probe, confusable, confusable-chain or "
        "informative (default: the method's)",
    )
    axes: dict[str, int] | str | None = setting(
        None, "further axes of the grid with their splits: hospital=2,year=3", takes="NAME=N,…"
    )
    separate: str | None = setting(
        None,
        "whether tasks of one domain may share a step: task, they may, or step, they may not (default: the method's)",
        choices=("task", "step"),
    )
    class_groups: int | None = setting(
        None, "split contiguous groups of classes instead of single ones", limits=COUNT, takes="N"
    )

    def grid(self, method: "Method", domains: int, classes: int, axes: Sequence[str]) -> "GridSpec":
        """Return the method's grid, no larger than the data, with the settings that were asked for on top."""
        own = method.grid
        self._check_axes(method, axes)
        for axis, splits, count in (("domain", self.domain_splits, domains), ("class", self.class_splits, classes)):
            if splits is not None and splits > count:
                plural = "source domains" if axis == "domain" else "known classes"
                raise MedicError(
                    f"{splits} {axis} splits need {splits} {plural} or more, but there are {count}: "
                    f"use --{axis}-splits {count} or fewer"
                )
        grid = replace(own, domains=domains) if method.each_domain else own.fitted(domains, classes)
        if self.sampling == "balanced":  # an axis that is split into 1 is balanced but not cut
            grid = replace(grid, domains=grid.domains or 1, classes=grid.classes or 1)
        further = parse_axes(self.axes)
        resized = self.domain_splits is not None or self.class_splits is not None or bool(further)
        steps = None if resized and not isinstance(grid.steps, int) else grid.steps  # sizes do not fit a resized grid
        planned = replace(
            grid,
            domains=_splits(self.domain_splits, grid.domains),
            classes=_splits(self.class_splits, grid.classes),
            axes={**own.axes, **further},
            steps=steps if self.steps is None else parse_steps(self.steps),
            repeat=self.repeat or grid.repeat,
            sampling=self.sampling or grid.sampling,
            separate=cast(Any, self.separate or grid.separate),
            class_groups=self.class_groups or grid.class_groups,
        )
        self._check_effects(planned, method)
        return planned

    def completed(self, grid: "GridSpec", method: "Method", images: int) -> "TaskSpec":
        """Return the complete spec of a grid, for so many images per iteration unless others were asked for."""
        if self.images is not None and self.batch_size is not None:
            raise MedicError(
                f"images {self.images} and batch_size {self.batch_size} determine each other: give one of them"
            )
        if self.images is not None and self.images < grid.tasks:
            raise MedicError(f"images is {self.images}: give at least one for each of the {grid.tasks} tasks")
        return replace(
            self,
            domain_splits=_written(grid.domains, method.grid.domains),
            class_splits=_written(grid.classes, method.grid.classes),
            steps=list(grid.round),
            repeat=grid.repeat,
            sampling=None if grid.classes is None else grid.sampling,
            axes=parse_axes(self.axes) or None,
            separate=grid.separate if grid.separates else None,
            class_groups=grid.class_groups,
            batch_size=self.batch_size or max(1, (self.images or images) // grid.tasks),
            images=None,  # the batch size determines it
        )

    def _check_axes(self, method: "Method", axes: Sequence[str]) -> None:
        for axis in parse_axes(self.axes):
            if axis in method.grid.axes:
                raise MedicError(f"axis {axis!r} is created by method {method.name!r} itself: leave it out of --axes")
            if not axes:
                raise MedicError(
                    f"axes: the dataset has no attributes to split, so {axis!r} cannot be one: leave out --axes"
                )
            check_choice("axis", axis, axes)

    def _check_effects(self, grid: "GridSpec", method: "Method") -> None:
        """Refuse settings that would have no effect on this grid."""
        for name in ("sampling", "class_groups"):
            if getattr(self, name) is not None and grid.classes is None:
                raise MedicError(f"{name} has no effect unless classes are split: add --class-splits")
        if grid.class_groups is not None and grid.classes is not None and grid.class_groups < grid.classes:
            raise MedicError(
                f"{grid.classes} class splits need as many groups of classes: use --class-groups {grid.classes} or "
                f"more, or --class-splits {grid.class_groups}"
            )
        if self.sampling not in (None, "random", "balanced") and grid.pairing == "ordered":
            from medic.objectives import PENALTIES

            penalty = method.preset.get("penalty")
            movable = penalty is not None and not PENALTIES[penalty].fixed_order
            way = f"use --method reptile --penalty {penalty} --steps 1" if movable else "leave out --sampling"
            raise MedicError(f"sampling has no effect on method {method.name!r}, whose tasks are fixed: {way}")
        if self.separate is not None and not grid.separates:
            raise MedicError(
                f"separate has no effect on method {method.name!r} with {len(grid.round)} steps: leave it out"
            )


def _splits(asked: int | None, own: int | None) -> int | None:
    """Return the splits of an axis, or None if it is pooled: 0 pools it, None keeps the method's own."""
    return own if asked is None else asked or None


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
