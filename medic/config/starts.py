"""Default training settings by starting point: how the backbone is initialised, and which part is trained.

Methods and users override these defaults. `docs/training.md` lists them, and `docs/studies.md` reports the measurements
behind them. The paper's protocols always use the first starting point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medic.systems.base import DOMAINBED_ADAM, Rate

SGD_DECAY = 5e-4 / 9
"""The authors use a weight decay of 5e-4 with gradients summed over 9 tasks; our gradients are means over tasks."""
ADAM: Mapping[str, float | Rate] = {"lr": DOMAINBED_ADAM, "weight_decay": 0.0}
"""Defaults for Adam and AdamW, unless the starting point or the method sets its own."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A starting point and its default settings."""

    when: str
    """Condition for this starting point, as worded in the documentation."""
    batch_norm: str
    augment: str = "medic"
    """Augmentation for benchmarks that have none of their own."""
    averaging: str = "swad"
    iterations: int
    rate: float = 1.0
    """SGD learning rate, as a multiple of the benchmark's."""
    inner: float | None = None
    """Inner learning rate, as a multiple of the outer one. None keeps the strategy's own rate, 0.01."""

    optimizer: str = "sgd"
    lr: float | None = None
    """Learning rate for an optimizer other than SGD."""
    weight_decay: float = SGD_DECAY
    schedule: str = "step"
    layer_decay: float = 1.0
    """Layer-wise learning-rate decay: factor per block, counted back from the head."""
    clip_norm: float = 0.0
    """Maximum gradient norm at this learning rate. 0 disables clipping."""
    warmup: float = 0.0
    """Fraction of the iterations used for learning-rate warm-up."""
    head_first: float = 0.0
    """Fraction of the iterations that train the head alone."""

    def settings(self, optimizer: str, benchmark_lr: float) -> dict[str, Any]:
        """Return the default settings for an optimizer and the learning rate of a benchmark.

        An optimizer other than the starting point's own gets generic defaults. `warmup` and `head_first` are fractions
        of the iterations.
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
        augment="strong",
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
        augment="strong",
    ),
    "frozen backbone": Start(when="`--tune head`", batch_norm="local", iterations=300, rate=3.0),
}
"""Starting points by name."""


def find_start(weights: str | None, tune: str, batch_norm: bool) -> str:
    """Return the name of a starting point. `batch_norm` says whether the backbone has batch-norm layers."""
    if tune == "head":
        return "frozen backbone"
    if tune == "adapters":
        return "adapters"
    if weights is None:
        return "scratch"
    return "pretrained" if batch_norm else "pretrained without batch norm"
