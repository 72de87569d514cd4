"""Base class for fitted scores, and validation of the outputs they are fitted on.

Like the scores in `scores.py`, fitted scores are computed in float64 on the outputs' device, are unbounded, and
are large for known classes. A fitted score contains only tensors, so that it can be saved and loaded.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError
from medic.openset.metrics import as_classes, check_shapes
from medic.openset.scores import AnyOutput, CheckedOutput, Values

CHUNK = 2**23
"""Maximum number of float64 values that one step allocates (64 MiB)."""


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """Base class for scores that are fitted on the training set. Scores are immutable, and all fields are tensors."""

    split: ClassVar[Literal["train", "validation"]] = "train"
    """Split that the score is fitted on. Scores that calibrate probabilities require images unseen in training."""
    exportable: ClassVar[bool] = False
    """Whether the score can be part of an exported graph: it is small, and never branches on its inputs."""

    @classmethod
    @abstractmethod
    def fit(cls, output: AnyOutput, label: Values, *others: Any, **hyperparameters: Any) -> Self:
        """Fit the score on the outputs for N samples with labels from 0 to C − 1.

        Scores that require a linear head take its `LinearHead` after the labels.
        """

    @abstractmethod
    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the confidence of every sample in `output`, of shape (N,) in float64."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fitted state: all fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Restore a score from its `tensors`. The restored score returns bit-identical confidences."""
        # A tensor loaded from a file may be unaligned, and BLAS may round differently for unaligned memory.
        return cls(**{name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()})

    def to(self, device: torch.device | str) -> Self:
        """Return the score on `device`. Every call moves the score if needed, so move it once before many calls."""
        return dataclasses.replace(self, **{name: tensor.to(device) for name, tensor in self.tensors.items()})


def euclidean(values: Tensor, centres: Tensor) -> Tensor:
    """Return Euclidean distances of shape (N, C), computed from differences to avoid cancellation."""
    return torch.cdist(values, centres, compute_mode="donot_use_mm_for_euclid_dist")


def unit(values: Tensor) -> Tensor:
    """Scale every row to length 1 in float64. A row of zeros stays zero."""
    return functional.normalize(values.double(), dim=1, eps=torch.finfo(torch.float64).tiny)


def rows_of(width: int) -> int:
    """Return how many rows of `width` values fit into one chunk."""
    return max(1, CHUNK // width)


def check_counts(**counts: int) -> None:
    """Raise an error unless every count is a whole number of at least 1."""
    for name, value in counts.items():
        if value != int(value) or value < 1:
            raise MedicError(f"{name} must be a whole number of at least 1, got {value}")


def _checked(name: str, columns: str, values: Tensor, fitted: int | None) -> Tensor:
    """Return values of shape (N, columns). Raise an error if any value is not finite or the number of columns is wrong.

    `fitted` is the number of columns that the score was fitted on.
    """
    if fitted is not None and values.shape[1] != fitted:
        raise MedicError(
            f"the outputs have {values.shape[1]} {columns}, but the score was fitted on {fitted}: fit it again"
        )
    # Minimum and maximum propagate NaN, and do not copy the values.
    if len(values) and (bad := int((~(values.amin(dim=1).isfinite() & values.amax(dim=1).isfinite())).sum())):
        raise MedicError(
            f"the {name} of {bad} of {len(values)} samples contain NaN or infinity; check the model and its inputs"
        )
    return values


def read_logits(output: AnyOutput, classes: int | None = None) -> Tensor:
    """Return finite logits of shape (N, C) in float64, detached. `classes` is the expected number of classes."""
    return _checked("logits", "classes", CheckedOutput.of(output).logits.detach(), classes)


def read_features(output: AnyOutput, width: int | None = None) -> Tensor:
    """Return finite features of shape (N, F) in their original dtype. `width` is the expected number of features."""
    return _checked("features", "features", CheckedOutput.of(output).features, width)


def read_training(output: AnyOutput, label: Values, *, every_class: bool = False) -> tuple[Tensor, Tensor]:
    """Return logits of shape (N, C) and labels of shape (N,) to fit on.

    With `every_class`, raise an error if a class has no sample.
    """
    logits = read_logits(output)
    if not len(logits):
        raise MedicError("no samples to fit the score on: pass the outputs for the training set")
    label, classes = as_classes("label", label, logits.device), logits.shape[1]
    check_shapes(logits=logits[:, 0], label=label)
    lowest, highest = int(label.min()), int(label.max())
    if lowest < 0 or highest >= classes:
        raise MedicError(
            f"label {lowest if lowest < 0 else highest} is not one of the {classes} known classes, 0 to {classes - 1}; "
            "fit on training samples of known classes only"
        )
    empty = (label.bincount(minlength=classes) == 0).nonzero().squeeze(1).tolist()
    if every_class and empty:
        raise MedicError(
            f"no training samples for class {', '.join(map(str, empty))}; fit on samples of all {classes} classes"
        )
    return logits, label
