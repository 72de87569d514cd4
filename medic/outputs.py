"""What a model says about a batch: the one type that models return and objectives and scores read."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Output(NamedTuple):
    """The outputs of one forward pass over N samples and C known classes.

    `logits` (N, C) are the close-set logits. `ova` (N, 2, C), where there is a one-vs-all head, holds the negative
    channel of every class at index 0 and the positive one at index 1. `features` (N, F) come from the backbone.
    """

    logits: Tensor
    ova: Tensor | None = None
    features: Tensor | None = None

    @classmethod
    def of(cls, value: "Output | Tensor") -> "Output":
        """Take what any model returns: an `Output`, or a tensor of logits (N, C)."""
        if isinstance(value, Output):
            return value
        if isinstance(value, Tensor):
            return cls(value)
        raise TypeError(
            f"a model must return a tensor of logits or a medic.Output, not {type(value).__name__}; "
            "wrap it: medic.Output(logits, ova)"
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> "Output":
        """Apply a function to every part that is there."""
        return Output(
            function(self.logits),
            None if self.ova is None else function(self.ova),
            None if self.features is None else function(self.features),
        )

    @classmethod
    def cat(cls, outputs: "Sequence[Output]") -> "Output":
        """Join outputs sample by sample; a part that the first lacks is left out."""
        first = outputs[0]
        return cls(
            torch.cat([output.logits for output in outputs]),
            None if first.ova is None else torch.cat([output.ova for output in outputs if output.ova is not None]),
            None
            if first.features is None
            else torch.cat([output.features for output in outputs if output.features is not None]),
        )
