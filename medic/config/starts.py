"""Default training settings by starting point: how the backbone is initialised, and what is trained.

`docs/training.md` prints the table; `docs/studies.md` has the measurements behind it. Settings of the user and of a
method override it. The paper's protocols use the first starting point only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medic.systems.base import DOMAINBED_ADAM, Rate

SGD_DECAY = 5e-4 / 9
"""The authors' weight decay is 5e-4, beside a gradient that is summed over t = 9 tasks; ours is their mean."""
ADAM: Mapping[str, float | Rate] = {"lr": DOMAINBED_ADAM, "weight_decay": 0.0}
"""The rates of Adam and AdamW, where neither the starting point nor the method has its own."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A starting point and its settings."""

    when: str
    """When a run has this starting point, as the documentation says it."""
    batch_norm: str
    averaging: str = "swad"
    iterations: int
    rate: float = 1.0
    """The learning rate of SGD as a multiple of the benchmark's."""
    inner: float | None = None
    """The inner learning rate as a multiple of the outer one; None keeps the strategy's own, 0.01."""

    optimizer: str = "sgd"
    lr: float | None = None
    """The learning rate of an optimizer other than SGD."""
    weight_decay: float = SGD_DECAY
    schedule: str = "step"
    layer_decay: float = 1.0
    """The learning rate of each block relative to that of the next one."""
    clip_norm: float = 0.0
    """The largest norm of the gradient at this rate; 0 does not limit it."""
    warmup: float = 0.0
    """The share of the iterations in which the rate climbs."""
    head_first: float = 0.0
    """The share of the iterations in which the head alone is trained."""

    def settings(self, optimizer: str, benchmark_lr: float) -> dict[str, Any]:
        """Return the settings for an optimizer, on a benchmark with a learning rate.

        An optimizer that is not the starting point's own has plain rates. Warm-up and head first are shares of the
        iterations.
        """
        shared = {"batch_norm": self.batch_norm, "averaging": self.averaging, "iterations": self.iterations}
        start = self if optimizer == self.optimizer else Start(when="", batch_norm="", iterations=0, rate=self.rate)
        names = ("weight_decay", "schedule", "layer_decay", "clip_norm", "warmup", "head_first")
        own = {name: getattr(start, name) for name in names}
        if optimizer == "sgd":
            return {**shared, **own, "lr": self.rate * benchmark_lr, "momentum": 0.9}
        return {**shared, **own, "momentum": 0.9, **(ADAM if start.lr is None else {"lr": start.lr})}


STARTS: Mapping[str, Start] = {
    "scratch": Start(when="no weights", batch_norm="local", iterations=1000),
    "pretrained": Start(
        when="weights of a network with batch norm",
        batch_norm="frozen",
        iterations=1200,
        rate=3.0,
        inner=0.2,
        clip_norm=5.0,
    ),
    "pretrained without batch norm": Start(
        when="weights of a network without batch norm, such as ViT and ConvNeXt",
        batch_norm="local",
        iterations=1200,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.05,
        schedule="cosine",
        layer_decay=0.75,
        clip_norm=1.0,
        warmup=0.1,
        head_first=0.1,
    ),
    "adapters": Start(
        when="`--tune adapters`",
        batch_norm="local",
        iterations=1200,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.0,
        schedule="cosine",
        clip_norm=1.0,
        warmup=0.1,
    ),
    "frozen backbone": Start(when="`--tune head`", batch_norm="local", iterations=300, rate=3.0),
}
"""The starting points by name."""


def find_start(weights: str | None, tune: str, batch_norm: bool) -> str:
    """Return the name of a run's starting point; `batch_norm` says whether its backbone has such layers."""
    if tune == "head":
        return "frozen backbone"
    if tune == "adapters":
        return "adapters"
    if weights is None:
        return "scratch"
    return "pretrained" if batch_norm else "pretrained without batch norm"
