"""A run that is ready to be built."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medic.config.config import Config
from medic.config.parts import Parts
from medic.data import Benchmark, LazyDataset
from medic.objectives import OBJECTIVES
from medic.systems.base import Method
from medic.tasks import GridSpec
from medic.training import Precision, pick_device, pick_precision
from medic.utils.parts import Law
from medic.utils.plugins import Plugin


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The configuration of a run, and the objects that the configuration names."""

    config: Config
    user_settings: Mapping[str, Any]
    """The settings as the user wrote them."""
    method: Method
    benchmark: Benchmark
    dataset: LazyDataset
    """The dataset, whose images are listed but not yet read."""
    start: str
    """Name of the starting point."""
    grid: GridSpec
    parts: Parts
    search: Mapping[str, Law]
    """Search ranges of the hyperparameters."""
    weights: Path | None
    """File with the backbone weights. None for random initialisation, or for a custom network's own weights."""
    plugins: tuple[Plugin, ...]
    """Code outside this package that the run uses."""

    @property
    def seed(self) -> int:
        """The seed for all random numbers."""
        return self.config.run.seed

    @property
    def device(self) -> torch.device:
        """The device to train on."""
        return pick_device(self.config.execution.device)

    @property
    def precision(self) -> Precision:
        """The network precision on this device."""
        return pick_precision(self.config.execution.precision, self.device)

    @property
    def batch_size(self) -> int:
        """Number of images per task."""
        return self.config.tasks.batch_size

    @property
    def networks(self) -> int:
        """Number of networks in the model."""
        several = OBJECTIVES[self.config.objective.objective].networks == "domain"
        return len(self.config.data.sources) if several else 1
