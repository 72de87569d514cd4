"""The model: a backbone with a head over the known classes."""

from typing import Literal

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.models.heads import HEADS, Head
from medic.models.stages import Stage, collected, find_stages
from medic.utils.modules import freeze_norms
from medic.utils.outputs import LinearHead, Output

Norms = Literal["trained", "frozen"]
"""The policy for batch-norm statistics in training."""


class Scaling(nn.Module):
    """Features (N, F) minus their mean, divided by one number, so that their mean variance is 1.

    One number for all features keeps the ratios between them: a deviation for each would make noise of the features
    that hardly vary as large as the others. It leaves features as they are until it is fitted.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(()))
        self.mean: Tensor
        self.deviation: Tensor

    def fit(self, features: Tensor) -> None:
        """Take the mean and the deviation from features (N, F)."""
        exact = features.double()
        self.mean.copy_(exact.mean(0))
        self.deviation.copy_(exact.var(0, correction=0).mean().sqrt().clamp(min=1e-6))

    def forward(self, features: Tensor) -> Tensor:
        """Centre and scale features (N, F)."""
        return (features - self.mean) / self.deviation


class Classifier(nn.Module):
    """A backbone and its head over C known classes.

    `head` is a class, or the name of one: `close` (C closed-set outputs), `separate` (2C one-vs-all outputs beside
    them), `shared` (one-vs-all outputs whose positive channel serves as closed-set logits), or that of a system, once
    `medic.systems` is imported. With `scaled`, the head reads centred and scaled features.
    """

    def __init__(
        self, backbone: Backbone, classes: int, head: str | type[Head] = "separate", scaled: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone.module
        self.classes, self.features = classes, backbone.features
        self.norms: Norms = "trained"
        self._tapped: tuple[Stage, ...] = ()  # in tuples, so that their weights are not registered twice
        self._last: tuple[Stage, ...] = ()
        self._tap_always = False
        make = HEADS[check_choice("head", head, HEADS)] if isinstance(head, str) else head
        if make.reads_maps:
            self._last = find_stages(self.backbone).stages[-1:]
        self.scaling = Scaling(backbone.features) if scaled else None
        self.head = make(self._last[0].channels if self._last else backbone.features, classes)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to the head's outputs for their features (N, F), or for their last map (N, C_s, H, W)."""
        tapped = self._tapped if self._tap_always or torch.is_grad_enabled() else ()
        with collected((*tapped, *self._last)) as maps:
            features = self.backbone(x)
        if self.scaling is not None:
            features = self.scaling(features.to(self.scaling.mean.dtype))
        output = Output.of(self.head(maps.pop())) if self._last else self.classify(features)
        return output._replace(stages=tuple(maps)) if tapped else output

    def classify(self, features: Tensor) -> Output:
        """Return the outputs of the head for features (N, F), as an `Output` has them."""
        with torch.autocast(features.device.type, enabled=False):  # cheap, and confidences need full precision
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

    def linear_head(self) -> LinearHead | None:
        """Return the weights of the closed-set logits, or None if these are not linear in the head's features."""
        return self.head.linear()

    def tap(self, always: bool = False) -> tuple[int, ...]:
        """Return the maps of the backbone's stem and stages with the outputs from now on; returns their channels.

        Maps are large, so that only differentiated passes return them, or `always` every pass.
        """
        stem, stages = find_stages(self.backbone)
        self._tapped, self._tap_always = (() if stem is None else (stem,)) + stages, always
        return tuple(stage.channels for stage in self._tapped)

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode of all layers; frozen batch norm stays in evaluation mode, its scale and shift are trained."""
        super().train(mode)
        if self.norms == "frozen":
            freeze_norms(self)
        return self

    def body(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone."""
        return list(self.backbone.parameters())

    def heads(self) -> list[nn.Parameter]:
        """Return the parameters of the head, for a separate rate."""
        return list(self.head.parameters())
