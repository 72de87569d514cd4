"""The complete, typed configuration of a run: every value that determines its result."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, Self

from medic.config.data import NONE, DataConfig
from medic.config.evaluation import EvaluationConfig
from medic.config.execution import ExecutionConfig
from medic.config.model import ModelConfig
from medic.config.objective import ObjectiveConfig
from medic.config.optim import OptimConfig
from medic.config.run import RunConfig
from medic.config.settings import GROUPS, SETTINGS, identity
from medic.config.tasks import TaskConfig


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete configuration. A value of None means "none", never "use the default"."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig
    tasks: TaskConfig
    objective: ObjectiveConfig
    optim: OptimConfig
    evaluation: EvaluationConfig
    execution: ExecutionConfig
    soup: tuple[str, ...] = ()
    """Hashes of the runs whose weights are averaged, best first. Empty for a trained run."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build a configuration from complete settings. Missing settings take their defaults."""
        values = {**{name: setting.default for name, setting in SETTINGS.items()}, **settings}
        if settings.get("freeze") is not None:  # written before `tune` existed
            values["tune"] = "head"
        if values["clip_norm"] is None:  # written before version 0.4
            values["clip_norm"] = 0.0
        if values["target"] == [NONE]:
            values["target"] = []
        groups: dict[str, Any] = {field.name: field.type for field in fields(cls) if field.name in GROUPS}
        complete = {
            name: group(**{field.name: values[field.name] for field in fields(group)}) for name, group in groups.items()
        }
        return cls(**complete, soup=tuple(settings.get("soup") or ()))

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, as written to files. A soup also lists the hashes of its runs."""
        values = {}
        for name, setting in SETTINGS.items():
            # `images` and `split` are not part of a configuration: they only determine other settings.
            values[name] = deepcopy(getattr(getattr(self, setting.group), name, None))
        values["target"] = list(self.data.target) or [NONE]
        return {**values, **({"soup": list(self.soup)} if self.soup else {})}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that affect the result."""
        return identity(self.settings)

    @property
    def seed(self) -> int:
        """The seed for all random numbers."""
        return self.run.seed
