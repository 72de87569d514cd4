"""Heads: what turns features into outputs over C known classes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.models.residual import ResidualBlock
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


class Renewed(nn.Module):
    """A part whose weights are put right before every iteration."""

    def renew(self) -> None:
        """Put them right."""
        raise NotImplementedError


class Ring(Renewed):
    """OneRing: C + 1 logits without bias, the last for unknown; every iteration begins with rows of length 1."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.ring_head = nn.Linear(features, classes + 1, bias=False)
        nn.init.xavier_uniform_(self.ring_head.weight)

    @torch.no_grad()
    def renew(self) -> None:
        """Shorten the rows to length 1; not in a forward pass, whose weights must stay until it is differentiated."""
        self.ring_head.weight.copy_(functional.normalize(self.ring_head.weight))

    def forward(self, features: Tensor) -> Output:
        """The logits of features (N, F)."""
        logits = self.ring_head(features)
        return Output(logits[:, :-1], features=features, unknown=logits[:, -1])


class Branches(nn.Module):
    """EBiL-HaDS: a residual block of stride 2 and one of stride 1 on a map, each with both logits of its own.

    A branch is block, batch norm, which both share, average over positions, dropout, heads. Close-set logits and
    features are those of the first branch, one-vs-all logits the means over both.
    """

    reads_maps = True
    """Whether it is given the map of the backbone's last stage, and its channels instead of the number of features."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(channels, stride) for stride in (2, 1))
        self.norm, self.dropout = nn.BatchNorm2d(channels), nn.Dropout(0.1)
        self.heads = nn.ModuleList(Separate(channels, classes) for _ in self.blocks)

    def forward(self, maps: Tensor) -> Output:
        """The outputs of maps (N, C_s, H, W), those of both branches among them."""
        pooled = [self.norm(block(maps)).mean((2, 3), dtype=self.norm.weight.dtype) for block in self.blocks]
        with torch.autocast(maps.device.type, enabled=False):  # confidences need all digits
            first, second = (head(self.dropout(features)) for head, features in zip(self.heads, pooled, strict=True))
            return Output(first.logits, (first.ova + second.ova) / 2, first.features, branches=(first, second))


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
    "branches": Branches,
    "prompted": Prompted,
}
"""By name; each is made for F features, or the channels of the map that it reads, and C classes."""
