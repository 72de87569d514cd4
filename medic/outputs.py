"""What a model says about a batch: the one type that models return and objectives and scores read."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError


class Output(NamedTuple):
    """The outputs of one forward pass over N samples and C known classes.

    `logits` (N, C) are the close-set logits. `ova` (N, 2, C), where there is a one-vs-all head, holds the negative
    channel of every class at index 0 and the positive one at index 1. `features` (N, F) come from the backbone.
    `unknown` (N,) is the logit of a class for all that is unknown, where the model has one, and `distance` (N, C) how
    far beyond the radius samples are from the reciprocal point of every class. `stages` are maps (N, C_s, H_s, W_s)
    from inside the backbone, where they were asked for. `branches` are what each branch of a model with several says by
    itself.
    """

    logits: Tensor
    ova: Tensor | None = None
    features: Tensor | None = None
    unknown: Tensor | None = None
    distance: Tensor | None = None
    stages: tuple[Tensor, ...] | None = None
    branches: "tuple[Output, ...] | None" = None

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

    def log_odds(self) -> Tensor:
        """log q_k / (1 - q_k) of the one-vs-all classifier of every class (N, C)."""
        if self.ova is None:
            raise MedicError("a one-vs-all head is needed: use --objective ce+ova, or return Output(logits, ova)")
        if self.ova.shape[1:] != (2, self.logits.shape[1]):
            expected = f"(samples, 2, {self.logits.shape[1]}), the negative channel first"
            raise MedicError(f"one-vs-all logits have the shape {tuple(self.ova.shape)}: {expected}, is expected")
        return self.ova[:, 1] - self.ova[:, 0]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Output":
        """Apply a function to every part that is there."""
        parts = {name: part for name, part in self._asdict().items() if isinstance(part, Tensor)}
        stages = None if self.stages is None else tuple(map(function, self.stages))
        branches = None if self.branches is None else tuple(branch.map(function) for branch in self.branches)
        return self._replace(**{name: function(part) for name, part in parts.items()}, stages=stages, branches=branches)

    def plus(self, other: "Output") -> "Output":
        """The sums of the parts that both have; maps of stages and branches are left out."""
        both = {
            name: part + getattr(other, name)
            for name, part in self._asdict().items()
            if isinstance(part, Tensor) and getattr(other, name) is not None
        }
        return Output(**both)

    @classmethod
    def cat(cls, outputs: "Sequence[Output]") -> "Output":
        """Join outputs sample by sample; a part that one of them lacks is left out."""
        columns = dict(zip(cls._fields, zip(*outputs, strict=True), strict=True))
        there = {name: parts for name, parts in columns.items() if all(part is not None for part in parts)}
        stages, branches = there.pop("stages", None), there.pop("branches", None)
        return cls(
            **{name: torch.cat(parts) for name, parts in there.items()},
            stages=None if stages is None else tuple(map(torch.cat, zip(*stages, strict=True))),
            branches=None if branches is None else tuple(map(cls.cat, zip(*branches, strict=True))),
        )
