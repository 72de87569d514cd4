"""Settings of the paper's experiments, in two versions: as in the paper's text and as in the authors' code.

`docs/protocols.md` lists the source of every value, and a test checks this module against it. Where the paper does not
state a value, both versions use the value in the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from medic.tasks import GridSpec, Separation


@dataclass(frozen=True)
class Protocol:
    """One version of the settings of the paper's experiments."""

    source: str
    """Name of the source in tables."""
    iterations: int
    """Number of outer updates on most datasets."""
    ova: Mapping[str, float]
    """Settings of the one-vs-all loss."""
    separate: Separation
    """Whether adaptive sampling puts confused classes into different tasks, or also into different steps."""
    groups: int | None = None
    """Number of class groups to split, if there are at least as many classes. None to split single classes."""
    close_set_groups: Mapping[str, int] = field(default_factory=dict)
    """Number of class groups for each dataset in closed-set experiments."""

    def settings(self, dataset: str, trains_ova: bool) -> dict[str, Any]:
        """Return the settings of a run, which the method and the user may override."""
        iterations = LONGER.get(dataset, self.iterations)
        return {"averaging": "none", "iterations": iterations, **(self.ova if trains_ova else {})}

    def fitted(
        self, grid: GridSpec, user_settings: Mapping[str, Any], dataset: str, known: int, unknown: int
    ) -> GridSpec:
        """Return a method's grid with the protocol's class splits. User settings take priority."""
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
"""Number of outer updates on larger datasets, for both versions: the authors' code does not state it."""

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
"""Protocols by their `--protocol` name."""

STATED = frozenset(
    "dataset images target sources classes split partial holdout backbone weights objective head score ova_scale "
    "ova_floor domain_splits class_splits steps sampling separate class_groups batch_size inner_lr order optimizer lr "
    "schedule iterations averaging".split()
)
"""Settings and conditions stated in the paper. All others come from the code, DomainBed or our own interpretation."""
