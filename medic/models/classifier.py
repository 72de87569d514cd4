"""The model: a backbone with a head over the known classes."""

from typing import Literal

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.models.heads import HEADS, Head
from medic.models.stages import Stage, Taps, collected, find_stages
from medic.outputs import Output

Norms = Literal["trained", "frozen"]
"""The policy for batch-norm statistics in training."""


class Classifier(nn.Module):
    """A backbone and its head over C known classes.

    `head` is a class, or the name of one: `close` (C close-set outputs), `separate` (2C one-vs-all outputs beside
    them), `shared` (one-vs-all outputs whose positive channel serves as close-set logits), or that of a system, once
    `medic.systems` is imported.
    """

    def __init__(self, backbone: Backbone, classes: int, head: str | type[Head] = "separate") -> None:
        super().__init__()
        self.backbone = backbone.module
        self.classes, self.features = classes, backbone.features
        self.norms: Norms = "trained"
        self._taps: Taps | None = None
        make = HEADS[check_choice("head", head, HEADS)] if isinstance(head, str) else head
        width = backbone.features
        self._last: tuple[Stage, ...] = ()  # in a tuple, so that its weights are not registered twice
        if make.reads_maps:
            last = find_stages(self.backbone).stages[-1]
            self._last, width = (last,), last.channels
        self.head = make(width, classes)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to the head's outputs for their features (N, F), or for their last map (N, C_s, H, W)."""
        if self._last:
            (last,) = self._last
            with collected(last.module) as maps:
                self.backbone(x)
            last.check(maps[-1])
            output = Output.of(self.head(maps[-1]))
        else:
            output = self.classify(self.backbone(x))
        return output if self._taps is None else output._replace(stages=self._taps.take())

    def classify(self, features: Tensor) -> Output:
        """Return the outputs of the head for features (N, F)."""
        with torch.autocast(features.device.type, enabled=False):  # cheap, and confidences need full precision
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

    def tap(self, always: bool = False) -> tuple[int, ...]:
        """Return the maps of the backbone's stem and stages with the outputs from now on; returns their channels.

        Maps are large, so that only differentiated passes return them, or `always` every pass.
        """
        stem, stages = find_stages(self.backbone)
        tapped = (() if stem is None else (stem,)) + stages
        self._taps = Taps(tapped, always)
        return tuple(stage.channels for stage in tapped)

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode of all layers; frozen batch norm stays in evaluation mode, its scale and shift are trained."""
        super().train(mode)
        if self.norms == "frozen":
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def body(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone."""
        return list(self.backbone.parameters())

    def heads(self) -> list[nn.Parameter]:
        """Return the parameters of the head, for a separate rate."""
        return list(self.head.parameters())
