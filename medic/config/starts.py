"""Default training settings by starting point: how the backbone is initialised, and what is trained.

`docs/training.md` prints the table; `docs/studies.md` has the measurements behind it. Settings of the user and of a
method override it. The paper's protocols use the first starting point only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medic.systems.base import DOMAINBED_ADAM, Rate


@dataclass(frozen=True, kw_only=True)
class Start:
    """A starting point and its settings."""

    when: str
    """When a run has this starting point, as the documentation says it."""
    batch_norm: str
    optimizer: str = "sgd"
    momentum: float = 0.9
    rate: float
    """The learning rate as a multiple of the benchmark's."""
    inner: float | None = None
    """The inner learning rate as a multiple of the outer one; None keeps the strategy's own, 0.01."""
    weight_decay: float = 5e-4 / 9  # the authors' 5e-4 beside a gradient summed over t = 9 tasks; ours is the mean
    schedule: str = "step"
    layer_decay: float = 1.0
    """The learning rate of each block relative to that of the next one."""
    clip_norm: float = 0.0
    """The largest norm of the gradient at this rate; 0 does not limit it."""
    warmup: float = 0.0
    """The share of the iterations in which the rate climbs."""
    averaging: str = "swad"
    iterations: int

    def settings(self, benchmark_lr: float) -> dict[str, Any]:
        """Return the settings for a benchmark with a learning rate, without those that depend on other settings."""
        names = (
            "batch_norm",
            "optimizer",
            "momentum",
            "weight_decay",
            "layer_decay",
            "clip_norm",
            "schedule",
            "averaging",
            "iterations",
        )
        return {**{name: getattr(self, name) for name in names}, "lr": self.rate * benchmark_lr}


STARTS: Mapping[str, Start] = {
    "scratch": Start(when="no weights", batch_norm="local", rate=1.0, iterations=1000),
    "pretrained": Start(
        when="weights of a network with batch norm",
        batch_norm="frozen",
        rate=3.0,
        inner=0.2,
        clip_norm=5.0,
        iterations=1200,
    ),
    "pretrained without batch norm": Start(
        when="weights of a network without batch norm, such as ViT and ConvNeXt",
        batch_norm="local",
        rate=1.0,
        inner=0.2,
        iterations=1200,
    ),
    "frozen backbone": Start(when="--tune head", batch_norm="local", rate=3.0, iterations=300),
}
"""The starting points by name."""


def find_start(weights: str | None, tune: str, batch_norm: bool) -> str:
    """Return the name of a run's starting point; `batch_norm` says whether its backbone has such layers."""
    if tune == "head":
        return "frozen backbone"
    if weights is None:
        return "scratch"
    return "pretrained" if batch_norm else "pretrained without batch norm"


ADAM: Mapping[str, float | Rate] = {"lr": DOMAINBED_ADAM, "weight_decay": 0.0}
"""Rates of Adam and AdamW, which replace those of a starting point."""
