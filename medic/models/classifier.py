"""The model: a backbone with a close-set head and a one-vs-all head, separate or shared."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from medic.errors import check_choice
from medic.models.backbones import Backbone
from medic.outputs import Output

Head = Literal["close", "separate", "shared"]


class Classifier(nn.Module):
    """A backbone and its heads over C known classes.

    `head="close"` has C close-set outputs alone; `"separate"` adds 2C one-vs-all outputs; `"shared"` has only those,
    and their positive channel serves as close-set logits.
    """

    def __init__(self, backbone: Backbone, classes: int, head: Head = "separate") -> None:
        super().__init__()
        check_choice("head", head, get_args(Head))
        self.backbone = backbone.module
        self.classes = classes
        self.close_head = _head(backbone.features, classes) if head != "shared" else None
        self.ova_head = _head(backbone.features, 2 * classes) if head != "close" else None

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to logits (N, C), one-vs-all logits (N, 2, C) where there are any, and features (N, F)."""
        return self.classify(self.backbone(x))

    def classify(self, features: Tensor) -> Output:
        """What the heads say of features (N, F)."""
        head = self.close_head or self.ova_head
        assert head is not None
        with torch.autocast(features.device.type, enabled=False):  # heads are small, and confidences need all digits
            features = features.to(head.weight.dtype)
            ova = None if self.ova_head is None else self.ova_head(features).view(-1, 2, self.classes)
            if self.close_head is not None:
                return Output(self.close_head(features), ova, features)
            assert ova is not None
            return Output(ova[:, 1], ova, features)

    def heads(self) -> list[nn.Parameter]:
        """The parameters of the heads, for a rate of their own."""
        return [p for head in (self.close_head, self.ova_head) if head is not None for p in head.parameters()]


def _head(features: int, outputs: int) -> nn.Linear:
    """A linear layer that starts near zero, as the authors' does."""
    head = nn.Linear(features, outputs)
    nn.init.xavier_uniform_(head.weight, gain=0.1)
    nn.init.zeros_(head.bias)
    return head
