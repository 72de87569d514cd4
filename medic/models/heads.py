"""Heads: what turns features into outputs over C known classes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.outputs import Output


class CloseSet(nn.Module):
    """C close-set logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.close_head = _linear(features, classes)

    def forward(self, features: Tensor) -> Output:
        """Logits of features (N, F)."""
        return Output(self.close_head(features), features=features)


class Separate(nn.Module):
    """C close-set logits and 2C one-vs-all logits, from weights of their own."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.close_head, self.ova_head = _linear(features, classes), _linear(features, 2 * classes)

    def forward(self, features: Tensor) -> Output:
        """Both logits of features (N, F)."""
        logits = self.close_head(features)
        return Output(logits, self.ova_head(features).view(len(logits), 2, -1), features)


class Shared(nn.Module):
    """2C one-vs-all logits, whose positive channel serves as close-set logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.ova_head = _linear(features, 2 * classes)

    def forward(self, features: Tensor) -> Output:
        """Both logits of features (N, F)."""
        ova = self.ova_head(features).view(len(features), 2, -1)
        return Output(ova[:, 1], ova, features)


class Reciprocal(nn.Module):
    """ARPL: a reciprocal point P_k stands for all that is not class k, and one radius R bounds what is known.

    Logits are ‖f - P_k‖² / F - f · P_k: far from the point means the class.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.points = nn.Parameter(0.1 * torch.randn(classes, features))
        self.radius = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Output:
        """Logits of features (N, F), and their distances beyond the radius."""
        product = features @ self.points.T
        squares = features.square().sum(1, keepdim=True) + self.points.square().sum(1)
        distance = (squares - 2 * product) / features.shape[1]
        return Output(distance - product, features=features, distance=distance - self.radius)


class Ring(nn.Module):
    """OneRing: C + 1 logits without bias, the last for all that is unknown; rows of length 1 at every training step."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.ring_head = nn.Linear(features, classes + 1, bias=False)
        nn.init.xavier_uniform_(self.ring_head.weight)

    def forward(self, features: Tensor) -> Output:
        """The logits of features (N, F)."""
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.ring_head.weight.copy_(functional.normalize(self.ring_head.weight))
        logits = self.ring_head(features)
        return Output(logits[:, :-1], features=features, unknown=logits[:, -1])


class Prompted(nn.Module):
    """HyProMeta: C + 1 close-set logits, the last for prompted images, and 2C one-vs-all logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.close_head, self.ova_head = _linear(features, classes + 1), _linear(features, 2 * classes)

    def forward(self, features: Tensor) -> Output:
        """The logits of features (N, F)."""
        logits = self.close_head(features)
        ova = self.ova_head(features).view(len(logits), 2, -1)
        return Output(logits[:, :-1], ova, features, unknown=logits[:, -1])


def _linear(features: int, outputs: int) -> nn.Linear:
    """A linear layer that starts near zero, as the authors' does."""
    layer = nn.Linear(features, outputs)
    nn.init.xavier_uniform_(layer.weight, gain=0.1)
    nn.init.zeros_(layer.bias)
    return layer


HEADS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "close": CloseSet,
    "separate": Separate,
    "shared": Shared,
    "reciprocal": Reciprocal,
    "ring": Ring,
    "prompted": Prompted,
}
"""By name; each is made for F features and C classes."""
