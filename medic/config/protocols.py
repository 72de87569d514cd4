"""The paper's experiments as settings, in two versions: the paper's text, and its authors' code.

`docs/protocols.md` lists both item by item, with the place of every value; a test holds this module against it. Where
the paper is silent, both have the value of the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from medic.tasks import GridSpec, Separation


@dataclass(frozen=True)
class Protocol:
    """The settings of the paper's experiments by one of its sources."""

    source: str
    """What tables call it."""
    iterations: int
    """Outer updates on most datasets."""
    ova: Mapping[str, float]
    """Settings of the one-vs-all loss."""
    separate: Separation
    """Where adaptive sampling puts classes that are confused: into different tasks, or also into different steps."""
    groups: int | None = None
    """The number of class groups that are split where there are at least as many classes; None for single classes."""
    close_set_groups: Mapping[str, int] = field(default_factory=dict)
    """The same by dataset, where all classes are known."""

    def settings(self, dataset: str, trains_ova: bool) -> dict[str, Any]:
        """Return the settings of a run, below those of its method."""
        iterations = LONGER.get(dataset, self.iterations)
        return {"averaging": "none", "iterations": iterations, **(self.ova if trains_ova else {})}

    def fitted(
        self, grid: GridSpec, user_settings: Mapping[str, Any], dataset: str, known: int, unknown: int
    ) -> GridSpec:
        """Return the grid of a method with the class splits of the protocol, except for what was given."""
        splits = grid.classes
        if splits is None:
            return grid
        if grid.sampling == "adaptive" and "sampling" not in user_settings:
            grid = replace(grid, sampling="probe")
        if grid.sampling == "probe" and grid.separates and "separate" not in user_settings:
            grid = replace(grid, separate=self.separate)
        groups = self.groups if unknown else self.close_set_groups.get(dataset, self.groups)
        if groups is not None and "class_groups" not in user_settings and known >= groups >= splits:
            grid = replace(grid, class_groups=groups)
        return grid


LONGER = {"domainnet": 30_000, "terra-incognita": 10_000}
"""Outer updates on larger datasets. The authors' code has no numbers of its own for them."""

PROTOCOLS = {
    "paper": Protocol("paper", 5000, {"ova_scale": 1.0, "ova_floor": 0.0}, "step"),
    "authors": Protocol(
        "authors' code",
        6000,
        {"ova_scale": 0.5, "ova_floor": 1e-8},
        "task",
        groups=10,
        close_set_groups={"terra-incognita": 5, "domainnet": 20},
    ),
}
"""The two versions by the name that `--protocol` knows them by."""

STATED = frozenset(
    "dataset images target sources classes split partial holdout backbone weights objective head score ova_scale "
    "ova_floor domain_splits class_splits steps sampling separate class_groups batch_size inner_lr order optimizer lr "
    "schedule iterations averaging".split()
)
"""Settings and conditions that the paper's text states. All others are the code's, DomainBed's or our reading."""
