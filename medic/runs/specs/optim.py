"""The optimisation of a run: iterations, optimizer, learning rates and weight averaging."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from medic.errors import MedicError, check_choice
from medic.fields import COUNT, NONNEGATIVE, POSITIVE, Limits, Spec, setting

if TYPE_CHECKING:
    from medic.training import OptimizerSettings, RateSchedule


@dataclass(frozen=True, kw_only=True)
class OptimSpec(Spec):
    """The outer optimizer, its schedule, and the averaging of weights."""

    iterations: int = setting(300, "outer updates", limits=COUNT)
    optimizer: str | None = setting(
        None, "sgd, adam or adamw (default: the method's)", choices=("sgd", "adam", "adamw")
    )
    lr: float | None = setting(None, "learning rate (default: the method's or the benchmark's)", limits=POSITIVE)
    momentum: float | None = setting(None, "momentum of sgd (default: the method's)", limits=Limits(0, 1, below=True))
    weight_decay: float | None = setting(None, "weight decay (default: the method's)", limits=NONNEGATIVE)
    head_lr_scale: float | None = setting(
        None, "learning rate of the heads relative to the backbone's (default: the method's, 1)", limits=POSITIVE
    )
    clip_norm: float | None = setting(None, "largest norm of the gradient (default: unlimited)", limits=POSITIVE)
    schedule: str | None = setting(
        None, "step, cosine or constant (default: the method's)", choices=("step", "cosine", "constant")
    )
    warmup: int = setting(0, "iterations of linear warm-up", limits=NONNEGATIVE)
    averaging: str | None = setting(None, "weight averaging: swad or none (default: the method's)")

    def completed(self) -> "OptimSpec":
        """Return the complete spec; rates and defaults are those of the layers below."""
        from medic.training import AVERAGES

        if self.warmup > self.iterations:
            raise MedicError(f"warmup is {self.warmup}: give at most the {self.iterations} iterations")
        assert self.lr is not None
        assert self.weight_decay is not None
        assert self.head_lr_scale is not None
        return replace(
            self,
            lr=float(self.lr),
            momentum=float(self.momentum or 0.0) if self.optimizer == "sgd" else None,
            weight_decay=float(self.weight_decay),
            head_lr_scale=float(self.head_lr_scale),
            averaging=check_choice("averaging", self.averaging or "none", ["none", *AVERAGES]),
        )

    @property
    def settings(self) -> "OptimizerSettings":
        """The optimizer of a complete spec."""
        from medic.training import OptimizerSettings

        values: Any = (self.optimizer, self.lr, self.momentum, self.weight_decay, self.head_lr_scale)
        return OptimizerSettings(*values)

    @property
    def rate_schedule(self) -> "RateSchedule":
        """The schedule of a complete spec."""
        from medic.training import RateSchedule

        return RateSchedule(cast(Any, self.schedule), self.iterations, self.warmup)
