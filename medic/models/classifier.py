"""The model: a backbone with a head over the known classes."""

from typing import Literal

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.models.heads import HEADS
from medic.models.stages import Stage, Taps, collected, find_stages
from medic.outputs import Output

Norms = Literal["trained", "frozen"]
"""What becomes of batch-norm statistics in training."""


class Classifier(nn.Module):
    """A backbone and its head over C known classes.

    `head` is `close` (C close-set outputs alone), `separate` (2C one-vs-all outputs beside them), `shared` (those only;
    their positive channel serves as close-set logits), `reciprocal` (of ARPL), `ring` (of OneRing), `prompted` (of
    HyProMeta) or `branches` (of EBiL-HaDS), which reads the map of the backbone's last stage instead of features.
    """

    def __init__(self, backbone: Backbone, classes: int, head: str = "separate") -> None:
        super().__init__()
        self.backbone = backbone.module
        self.classes, self.features = classes, backbone.features
        self.norms: Norms = "trained"
        self._taps: Taps | None = None
        make, width = HEADS[check_choice("head", head, HEADS)], backbone.features
        self._last: tuple[Stage, ...] = ()  # in a tuple, so that its weights are not listed twice
        if getattr(make, "reads_maps", False):
            last = find_stages(self.backbone).stages[-1]
            self._last, width = (last,), last.channels
        self.head = make(width, classes)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to what the head says of their features (N, F), or of their last map (N, C_s, H, W)."""
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
        """What the head says of features (N, F)."""
        with torch.autocast(features.device.type, enabled=False):  # heads are small, and confidences need all digits
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

    def tap(self, always: bool = False) -> tuple[int, ...]:
        """Give the maps of the backbone's stem and stages with the outputs from now on; returns their channels.

        They are large, so that only a pass that is differentiated gives them, or `always` every one.
        """
        stem, stages = find_stages(self.backbone)
        tapped = (() if stem is None else (stem,)) + stages
        self._taps = Taps(tapped, always)
        return tuple(stage.channels for stage in tapped)

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode of all layers; frozen batch norm stays in evaluation mode, though its scale and shift learn."""
        super().train(mode)
        if self.norms == "frozen":
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def body(self) -> list[nn.Parameter]:
        """The parameters of the backbone."""
        return list(self.backbone.parameters())

    def heads(self) -> list[nn.Parameter]:
        """The parameters of the head, for a rate of their own."""
        return list(self.head.parameters())
