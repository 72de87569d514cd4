"""Heads: they turn features into outputs over C known classes."""

from typing import ClassVar

from torch import Tensor, nn

from medic.utils.outputs import LinearHead, Output

HEADS: dict[str, type["Head"]] = {}
"""Heads by name; each is made for F features, or the channels of the map that it reads, and C classes."""


class Head(nn.Module):
    """A head over C classes. A subclass registers itself by its `name` and declares what it can do."""

    ova: ClassVar[bool] = False
    """Whether it has one-vs-all outputs."""
    unknown: ClassVar[bool] = False
    """Whether it decides by an output for unknown."""
    nonlinear: ClassVar[str | None] = None
    """The reason if its logits are not linear in the features, or None."""
    reads_maps: ClassVar[bool] = False
    """Whether it reads the map of the backbone's last stage instead of features."""

    def __init_subclass__(cls, name: str) -> None:
        super().__init_subclass__()
        HEADS[name] = cls

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()

    def linear(self) -> LinearHead | None:
        """Return the weights of the closed-set logits, or None if these are not linear in the features."""
        return None

    def renew(self) -> None:
        """Prepare the weights for the next iteration. Outside of the forward pass, which must not change weights."""


class CloseSet(Head, name="close"):
    """C closed-set logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.close_head = linear_layer(features, classes)

    def linear(self) -> LinearHead:
        """Return the weights of the logits."""
        return LinearHead(self.close_head.weight, self.close_head.bias)

    def forward(self, features: Tensor) -> Output:
        """Return the logits of features (N, F)."""
        return Output(self.close_head(features), features=features)


class Separate(Head, name="separate"):
    """C closed-set logits and 2C one-vs-all logits, from separate weights."""

    ova = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.close_head, self.ova_head = linear_layer(features, classes), linear_layer(features, 2 * classes)

    def linear(self) -> LinearHead:
        """Return the weights of the closed-set logits."""
        return LinearHead(self.close_head.weight, self.close_head.bias)

    def forward(self, features: Tensor) -> Output:
        """Return both logits of features (N, F)."""
        logits = self.close_head(features)
        return Output(logits, self.ova_head(features).unflatten(1, (2, -1)), features)


class Shared(Head, name="shared"):
    """2C one-vs-all logits, whose positive channel serves as closed-set logits."""

    ova = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.ova_head = linear_layer(features, 2 * classes)

    def linear(self) -> LinearHead:
        """Return the weights of the positive channel."""
        weight, bias = (part.unflatten(0, (2, -1))[1] for part in (self.ova_head.weight, self.ova_head.bias))
        return LinearHead(weight, bias)

    def forward(self, features: Tensor) -> Output:
        """Return both logits of features (N, F)."""
        ova = self.ova_head(features).unflatten(1, (2, -1))
        return Output(ova[:, 1], ova, features)


def linear_layer(features: int, outputs: int) -> nn.Linear:
    """Return a linear layer that starts near zero, as the authors' does."""
    layer = nn.Linear(features, outputs)
    nn.init.xavier_uniform_(layer.weight, gain=0.1)
    nn.init.zeros_(layer.bias)
    return layer
