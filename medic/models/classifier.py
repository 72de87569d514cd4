"""The model: a backbone with a head over the known classes."""

from typing import Literal

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.models.heads import HEADS, Head
from medic.models.stages import Stage, collected, find_stages
from medic.utils.modules import freeze_norms
from medic.utils.outputs import Output

Norms = Literal["trained", "frozen"]
"""The policy for batch-norm statistics in training."""


class Classifier(nn.Module):
    """A backbone and its head over C known classes.

    `head` is a class, or the name of one: `close` (C closed-set outputs), `separate` (2C one-vs-all outputs beside
    them), `shared` (one-vs-all outputs whose positive channel serves as closed-set logits), or that of a system, once
    `medic.systems` is imported.
    """

    def __init__(self, backbone: Backbone, classes: int, head: str | type[Head] = "separate") -> None:
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
        self.head = make(self._last[0].channels if self._last else backbone.features, classes)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to the head's outputs for their features (N, F), or for their last map (N, C_s, H, W)."""
        tapped = self._tapped if self._tap_always or torch.is_grad_enabled() else ()
        with collected((*tapped, *self._last)) as maps:
            features = self.backbone(x)
        output = Output.of(self.head(maps.pop())) if self._last else self.classify(features)
        return output._replace(stages=tuple(maps)) if tapped else output

    def classify(self, features: Tensor) -> Output:
        """Return the outputs of the head for features (N, F)."""
        with torch.autocast(features.device.type, enabled=False):  # cheap, and confidences need full precision
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

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
