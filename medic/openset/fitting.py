"""The base class of fitted scores, and the checks of the outputs that they are fitted on.

Like the scores in `scores.py`, they are computed in float64 on the device of the outputs, are unbounded, and are large
for a known class. A fitted score consists of tensors only, so that it can be saved and loaded.
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
"""The number of float64 values (64 MiB) that one step may allocate."""


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """A score that is fitted on the training set. It is immutable, and all of its fields are tensors."""

    split: ClassVar[Literal["train", "validation"]] = "train"
    """The images that the score is fitted on. A score that reads how sure the model is needs images it has not seen."""

    @classmethod
    @abstractmethod
    def fit(cls, output: AnyOutput, label: Values, *others: Any, **hyperparameters: Any) -> Self:
        """Fit the score on the outputs for N samples with labels (N,) in 0..C−1.

        A score that reads a linear head takes its `LinearHead` after the labels.
        """

    @abstractmethod
    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the confidence (N,) of every sample of `output` in float64."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fitted state: every field by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Restore a score from its `tensors`; its confidences are bit-identical."""
        # A tensor loaded from a file may be unaligned, and BLAS may round differently for unaligned memory.
        return cls(**{name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()})

    def to(self, device: torch.device | str) -> Self:
        """Return the score on `device`. A call moves the score too; move it once before many calls."""
        return dataclasses.replace(self, **{name: tensor.to(device) for name, tensor in self.tensors.items()})


def euclidean(values: Tensor, centres: Tensor) -> Tensor:
    """Return distances (N, C), computed from differences because a product would cancel."""
    return torch.cdist(values, centres, compute_mode="donot_use_mm_for_euclid_dist")


def unit(values: Tensor) -> Tensor:
    """Return every row scaled to length 1 in float64; a row of zeros stays zero."""
    return functional.normalize(values.double(), dim=1, eps=torch.finfo(torch.float64).tiny)


def rows_of(width: int) -> int:
    """Return the number of rows of `width` values that fit into one chunk."""
    return max(1, CHUNK // width)


def check_counts(**counts: int) -> None:
    """Refuse counts, by name, that are not whole numbers of at least 1."""
    for name, value in counts.items():
        if value != int(value) or value < 1:
            raise MedicError(f"{name} must be a whole number of at least 1, not {value}")


def _checked(name: str, columns: str, values: Tensor, fitted: int | None) -> Tensor:
    """Refuse values (N, columns) that are not finite, or not as many per sample as the score was `fitted` on."""
    if fitted is not None and values.shape[1] != fitted:
        raise MedicError(
            f"the outputs have {values.shape[1]} {columns}, the score was fitted on {fitted}: fit it again"
        )
    # Both extremes propagate NaN, and neither copies the values.
    if len(values) and (bad := int((~(values.amin(dim=1).isfinite() & values.amax(dim=1).isfinite())).sum())):
        raise MedicError(
            f"the {name} of {bad} of {len(values)} samples have NaN or infinity; look for it in the model or its inputs"
        )
    return values


def read_logits(output: AnyOutput, classes: int | None = None) -> Tensor:
    """Return finite logits (N, C) in float64, without a graph, for the classes that the score was fitted on."""
    return _checked("logits", "classes", CheckedOutput.of(output).logits.detach(), classes)


def read_features(output: AnyOutput, width: int | None = None) -> Tensor:
    """Return finite features (N, F) in their own type, as many as the score was fitted on."""
    return _checked("features", "features", CheckedOutput.of(output).features, width)


def read_training(output: AnyOutput, label: Values, *, every_class: bool = False) -> tuple[Tensor, Tensor]:
    """Return the logits (N, C) and labels (N,) to fit on; with `every_class`, every class must have a sample."""
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
            f"no training sample of class {', '.join(map(str, empty))}; fit on samples of all {classes} classes"
        )
    return logits, label
