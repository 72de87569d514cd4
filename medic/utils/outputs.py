"""Model outputs for a batch: the type returned by models and used by objectives and scores."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError


def _described(value: object) -> str:
    """Describe a value for an error message: its type, and for a tuple or list the tensor shapes."""
    if isinstance(value, tuple | list):
        parts = ", ".join(str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in value)
        return f"a {type(value).__name__} of {parts}" if parts else f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"


class LinearHead(NamedTuple):
    """A linear closed-set head: `weight` of shape (C, F) and `bias` of shape (C,)."""

    weight: Tensor
    bias: Tensor


class Output(NamedTuple):
    """The outputs of one forward pass over N samples and C known classes.

    | field | shape | meaning |
    |---|---|---|
    | `logits` | (N, C) | closed-set logits |
    | `ova` | (N, 2, C) | one-vs-all logits: index 0 is the negative channel of every class, index 1 the positive |
    | `features` | (N, F) | backbone features |
    | `unknown` | (N,) | logit of an extra class for all unknown images |
    | `distance` | (N, C) | distance to the reciprocal point of every class, minus its radius |
    | `stages` | (N, C_s, H_s, W_s) each | intermediate feature maps of the backbone, if requested |
    | `branches` | | outputs of each branch, if the model has several |

    Fields that the model does not compute are None.
    """

    logits: Tensor
    ova: Tensor | None = None
    features: Tensor | None = None
    unknown: Tensor | None = None
    distance: Tensor | None = None
    stages: tuple[Tensor, ...] | None = None
    branches: "tuple[Output, ...] | None" = None

    @classmethod
    def of(cls, value: Any) -> "Output":
        """Convert the return value of any model.

        Accepts an `Output`, logits of shape (N, C), a pair of logits and one-vs-all logits of shape (N, 2, C), or an
        object with a `logits` attribute, as returned by Hugging Face models.
        """
        if isinstance(value, Output):
            return value
        if isinstance(value, Tensor):
            return cls(value)
        if isinstance(value, tuple) and [getattr(part, "ndim", None) for part in value] == [2, 3]:
            return cls(*value)
        if isinstance(logits := getattr(value, "logits", None), Tensor):
            return cls(logits)
        raise MedicError(
            f"the model returned {_described(value)}: expected logits of shape (samples, classes), a pair of logits "
            "and one-vs-all logits of shape (samples, 2, classes), or medic.Output(logits, ova)"
        )

    def in_full(self) -> "Output":
        """Convert half-precision outputs to single precision, as losses require. `stages` are not converted."""
        half = (torch.bfloat16, torch.float16)
        parts = {name: part for name, part in self._asdict().items() if isinstance(part, Tensor) and part.dtype in half}
        full: dict[str, Any] = {name: part.float() for name, part in parts.items()}
        return self._replace(**full) if full else self

    def check_logits(self, samples: int) -> None:
        """Raise an error unless the logits are floating-point numbers of shape (samples, classes)."""
        shape = tuple(self.logits.shape)
        if len(shape) != 2 or shape[0] != samples or not shape[1] or not self.logits.is_floating_point():
            kind = "" if self.logits.is_floating_point() else f" and type {self.logits.dtype}"
            raise MedicError(
                f"the model returned logits of shape {shape}{kind} for {samples} samples: expected floating-point "
                f"logits of shape ({samples}, classes)"
            )

    def ova_logits(self) -> Tensor:
        """Return the one-vs-all logits of shape (N, 2, C), or raise an error if the model has none."""
        if self.ova is None:
            raise MedicError("the model has no one-vs-all head: use --objective ce+ova, or return Output(logits, ova)")
        if self.ova.shape[1:] != (2, self.logits.shape[1]):
            expected = f"(samples, 2, {self.logits.shape[1]}), with the negative channel first"
            raise MedicError(f"one-vs-all logits have shape {tuple(self.ova.shape)}, expected {expected}")
        return self.ova

    def log_odds(self) -> Tensor:
        """Return the log-odds of every one-vs-all classifier, log q_k / (1 − q_k), of shape (N, C)."""
        ova = self.ova_logits()
        return ova[:, 1] - ova[:, 0]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Output":
        """Apply a function to every field that is not None."""
        parts = {name: part for name, part in self._asdict().items() if isinstance(part, Tensor)}
        stages = None if self.stages is None else tuple(map(function, self.stages))
        branches = None if self.branches is None else tuple(branch.map(function) for branch in self.branches)
        return self._replace(**{name: function(part) for name, part in parts.items()}, stages=stages, branches=branches)

    def plus(self, other: "Output") -> "Output":
        """Add the fields that both outputs have, except `stages` and `branches`."""
        both = {
            name: part + getattr(other, name)
            for name, part in self._asdict().items()
            if isinstance(part, Tensor) and getattr(other, name) is not None
        }
        return Output(**both)

    @classmethod
    def cat(cls, outputs: "Sequence[Output]") -> "Output":
        """Concatenate outputs along the sample dimension. Fields that are None in any output are dropped."""
        columns = dict(zip(cls._fields, zip(*outputs, strict=True), strict=True))
        present = {name: parts for name, parts in columns.items() if all(part is not None for part in parts)}
        stages, branches = present.pop("stages", None), present.pop("branches", None)
        return cls(
            **{name: torch.cat(parts) for name, parts in present.items()},
            stages=None if stages is None else tuple(map(torch.cat, zip(*stages, strict=True))),
            branches=None if branches is None else tuple(map(cls.cat, zip(*branches, strict=True))),
        )
