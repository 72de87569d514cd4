"""Heads, which map features to outputs over C known classes."""

from typing import ClassVar

from torch import Tensor, nn

from medic.utils.outputs import LinearHead, Output

HEADS: dict[str, type["Head"]] = {}
"""Head classes by name. Each takes the number of features (or of map channels) and the number of classes."""


class Head(nn.Module):
    """Base class for heads over C classes. A subclass declares its capabilities, and is registered under its `name`."""

    ova: ClassVar[bool] = False
    """Whether the head has one-vs-all outputs."""
    unknown: ClassVar[bool] = False
    """Whether the head has an output for unknown samples, which determines its decisions."""
    nonlinear: ClassVar[str | None] = None
    """Why the logits are not linear in the features, or None if they are linear."""
    reads_maps: ClassVar[bool] = False
    """Whether the head reads the feature map of the last backbone stage instead of features."""

    def __init_subclass__(cls, name: str | None = None) -> None:  # torch.export makes subclasses without a name
        super().__init_subclass__()
        if name is not None:
            HEADS[name] = cls

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()

    def linear(self) -> LinearHead | None:
        """Return the weights of the closed-set logits, or None if the logits are not linear in the features."""
        return None

    def renew(self) -> None:
        """Prepare the weights for the next iteration. Not part of `forward`, which must not change weights."""


class CloseSet(Head, name="close"):
    """A head with C closed-set logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.close_head = linear_layer(features, classes)

    def linear(self) -> LinearHead:
        """Return the weights of the logits."""
        return LinearHead(self.close_head.weight, self.close_head.bias)

    def forward(self, features: Tensor) -> Output:
        """Return the logits for features of shape (N, F)."""
        return Output(self.close_head(features), features=features)


class Separate(Head, name="separate"):
    """A head with C closed-set logits and 2C one-vs-all logits, computed from separate weights."""

    ova = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.close_head, self.ova_head = linear_layer(features, classes), linear_layer(features, 2 * classes)

    def linear(self) -> LinearHead:
        """Return the weights of the closed-set logits."""
        return LinearHead(self.close_head.weight, self.close_head.bias)

    def forward(self, features: Tensor) -> Output:
        """Return closed-set and one-vs-all logits for features of shape (N, F)."""
        logits = self.close_head(features)
        return Output(logits, self.ova_head(features).unflatten(1, (2, -1)), features)


class Shared(Head, name="shared"):
    """A head with 2C one-vs-all logits, whose positive channel serves as closed-set logits."""

    ova = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.ova_head = linear_layer(features, 2 * classes)

    def linear(self) -> LinearHead:
        """Return the weights of the positive channel."""
        weight, bias = (part.unflatten(0, (2, -1))[1] for part in (self.ova_head.weight, self.ova_head.bias))
        return LinearHead(weight, bias)

    def forward(self, features: Tensor) -> Output:
        """Return closed-set and one-vs-all logits for features of shape (N, F)."""
        ova = self.ova_head(features).unflatten(1, (2, -1))
        return Output(ova[:, 1], ova, features)


def linear_layer(features: int, outputs: int) -> nn.Linear:
    """Return a linear layer with weights near zero, initialised as in the authors' code."""
    layer = nn.Linear(features, outputs)
    nn.init.xavier_uniform_(layer.weight, gain=0.1)
    nn.init.zeros_(layer.bias)
    return layer
