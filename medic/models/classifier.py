"""The model: a backbone with a head over the known classes."""

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.models.heads import HEADS
from medic.outputs import Output


class Classifier(nn.Module):
    """A backbone and its head over C known classes.

    `head` is `close` (C close-set outputs alone), `separate` (2C one-vs-all outputs beside them), `shared` (those only;
    their positive channel serves as close-set logits), `reciprocal` (of ARPL) or `ring` (of OneRing).
    """

    def __init__(self, backbone: Backbone, classes: int, head: str = "separate") -> None:
        super().__init__()
        self.backbone = backbone.module
        self.classes = classes
        self.head = HEADS[check_choice("head", head, HEADS)](backbone.features, classes)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to what the head says of their features (N, F)."""
        return self.classify(self.backbone(x))

    def classify(self, features: Tensor) -> Output:
        """What the head says of features (N, F)."""
        with torch.autocast(features.device.type, enabled=False):  # heads are small, and confidences need all digits
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

    def heads(self) -> list[nn.Parameter]:
        """The parameters of the head, for a rate of their own."""
        return list(self.head.parameters())
