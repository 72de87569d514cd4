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
"""Policy for batch-norm statistics during training."""


class Scaling(nn.Module):
    """A layer that centres features and divides them by one number, so that their mean variance is 1.

    Dividing all features by the same number keeps their ratios. A separate deviation per feature would amplify the
    noise in features that hardly vary. Before `fit`, the layer returns features unchanged.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(()))
        self.mean: Tensor
        self.deviation: Tensor

    def fit(self, features: Tensor) -> None:
        """Compute the mean and the deviation from features of shape (N, F)."""
        exact = features.double()
        self.mean.copy_(exact.mean(0))
        self.deviation.copy_(exact.var(0, correction=0).mean().sqrt().clamp(min=1e-6))

    def forward(self, features: Tensor) -> Tensor:
        """Centre and scale features of shape (N, F)."""
        return (features - self.mean) / self.deviation


class Classifier(nn.Module):
    """A backbone with a head over C known classes.

    `head` is a `Head` class or its name: `close` (C closed-set logits), `separate` (C closed-set and 2C one-vs-all
    logits), `shared` (2C one-vs-all logits whose positive channel serves as closed-set logits), or the head of a
    system, once `medic.systems` is imported. With `scaled`, features are centred and scaled before the head.
    """

    def __init__(
        self, backbone: Backbone, classes: int, head: str | type[Head] = "separate", scaled: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone.module
        self.classes, self.features = classes, backbone.features
        self.norms: Norms = "trained"
        self._tapped: tuple[Stage, ...] = ()  # tuples, so that torch does not register their weights twice
        self._last: tuple[Stage, ...] = ()
        self._tap_always = False
        make = HEADS[check_choice("head", head, HEADS)] if isinstance(head, str) else head
        if make.reads_maps:
            self._last = find_stages(self.backbone).stages[-1:]
        self.scaling = Scaling(backbone.features) if scaled else None
        self.head = make(self._last[0].channels if self._last else backbone.features, classes)

    def forward(self, x: Tensor) -> Output:
        """Compute the head's outputs for inputs of shape (N, …).

        The head reads features of shape (N, F), or the last feature map, of shape (N, C_s, H, W).
        """
        tapped = self._tapped if self._tap_always or torch.is_grad_enabled() else ()
        with collected((*tapped, *self._last)) as maps:
            features = self.backbone(x)
        if self.scaling is not None:
            features = self.scaling(features.to(self.scaling.mean.dtype))
        output = Output.of(self.head(maps.pop())) if self._last else self.classify(features)
        return output._replace(stages=tuple(maps)) if tapped else output

    def classify(self, features: Tensor) -> Output:
        """Return the head's outputs for features of shape (N, F)."""
        with torch.autocast(features.device.type, enabled=False):  # cheap, and confidences require full precision
            return Output.of(self.head(features.to(next(self.head.parameters()).dtype)))

    def linear_head(self) -> LinearHead | None:
        """Return the weights of the closed-set logits, or None if the logits are not linear in the features."""
        return self.head.linear()

    def tap(self, always: bool = False) -> tuple[int, ...]:
        """Add the feature maps of the stem and stages to future outputs, and return their numbers of channels.

        Maps are large, so only passes with gradients return them. With `always`, every pass returns them.
        """
        stem, stages = find_stages(self.backbone)
        self._tapped, self._tap_always = (() if stem is None else (stem,)) + stages, always
        return tuple(stage.channels for stage in self._tapped)

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode of all layers. Frozen batch norm stays in evaluation mode but trains its scale and shift."""
        super().train(mode)
        if self.norms == "frozen":
            freeze_norms(self)
        return self

    def body(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone."""
        return list(self.backbone.parameters())

    def heads(self) -> list[nn.Parameter]:
        """Return the parameters of the head, which may have a separate learning rate."""
        return list(self.head.parameters())
