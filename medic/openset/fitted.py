"""Confidence scores that are fitted on the outputs for the training set.

Like the scores in `scores.py`, they are computed in float64 on the device of the outputs, are unbounded, and are large
for a known class. A fitted score consists of tensors only, so that it can be saved and loaded.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice
from medic.openset.metrics import as_classes, check_shapes
from medic.openset.scores import AnyOutput, CheckedOutput, Values
from medic.openset.weibull import fit_weibull
from medic.utils.parts import Limits, check_range

DISTANCES: dict[str, tuple[float, float]] = {"euclidean": (1.0, 0.0), "cosine": (0.0, 1.0), "eucos": (1 / 200, 1.0)}
"""The weights of ‖v − μ‖ and of 1 − cos(v, μ) in the distance of logits v to a class mean μ."""

CHUNK = 2**23
"""The number of float64 values (64 MiB) that one step may allocate."""


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """A score that is fitted on the training set. It is immutable, and all of its fields are tensors."""

    @classmethod
    @abstractmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Fit the score on the outputs for N training samples with labels (N,) in 0..C−1."""

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


class Recalibrated(NamedTuple):
    """The logits v̂ (N, C) of OpenMax and the logit of "unknown" (N,), in float64."""

    logits: Tensor
    unknown: Tensor


@dataclass(frozen=True, eq=False)
class OpenMax(Fitted):
    """OpenMax (Bendale and Boult 2016): logits far from the mean of their class lose to an unknown class.

    `means` (C, C) are the mean logits μ_c of every class c. The distance d of logits to μ_c is modelled by a Weibull
    distribution of d + `shift` − `offset` with `shape` (C,) and `scale` (C,). `alpha` is the number of top classes that
    are recalibrated, and `distance` (2,) holds the weights of the euclidean and the cosine distance.
    """

    means: Tensor
    shape: Tensor
    scale: Tensor
    offset: Tensor
    shift: Tensor
    alpha: Tensor
    distance: Tensor

    @classmethod
    def fit(
        cls,
        output: AnyOutput,
        label: Values,
        *,
        tail: int = 20,
        alpha: int = 3,
        shift: float = 10000.0,
        distance: str = "euclidean",
    ) -> Self:
        """Fit every class on its correctly classified samples, or on all of its samples if none is correct.

        The Weibull distribution is fitted to the `tail` largest distances d to μ_c (all, if there are fewer), moved by
        `shift` minus the smallest of them. `alpha` is capped at C. `distance` is "euclidean" (OpenOOD), "cosine", or
        "eucos" (the original paper), which is euclidean / 200 + cosine.
        """
        _check_counts(tail=tail, alpha=alpha)
        check_range("OpenMax", Limits(above=True), shift=shift)
        weights = DISTANCES[check_choice("distance", distance, DISTANCES)]
        logits, label = _training(output, label, every_class=True)
        metric = logits.new_tensor(weights)
        correct = logits.argmax(dim=1) == label
        means, fits = [], []
        for c in range(logits.shape[1]):
            own = label == c
            kept = own & correct
            values = logits[kept if bool(kept.any()) else own]
            mean = values.mean(dim=0, keepdim=True)
            largest = _distance(values, mean, metric).squeeze(1).topk(min(tail, len(values))).values
            means.append(mean)
            fits.append((*fit_weibull(largest, shift), float(largest.min())))
        shape, scale, offset = (logits.new_tensor(column) for column in zip(*fits, strict=True))
        return cls(
            means=torch.cat(means),
            shape=shape,
            scale=scale,
            offset=offset,
            shift=logits.new_tensor(shift),
            alpha=torch.tensor(min(alpha, logits.shape[1]), device=logits.device),
            distance=metric,
        )

    def recalibrate(self, output: AnyOutput) -> Recalibrated:
        """Return the logits v̂_c = v_c (1 − ω_c w_c) and the unknown logit Σ_c v_c ω_c w_c.

        w_c is the Weibull probability of a distance of at most that of v to μ_c. ω_c = (A + 1 − r) / A for the class of
        rank r = 1..A by logit, A = `alpha`, and 0 for the others. As in the original, a negative logit is raised.
        """
        logits = _logits(output, len(self.means))
        own = self.to(logits.device)
        rank = torch.arange(1, logits.shape[1] + 1, dtype=torch.float64, device=logits.device)
        by_rank = ((own.alpha + 1 - rank) / own.alpha).clamp(min=0)
        order = logits.argsort(dim=1, descending=True, stable=True)
        taken = torch.zeros_like(logits).scatter(1, order, by_rank.expand_as(logits)) * own._outlier(logits)
        return Recalibrated(logits * (1 - taken), (logits * taken).sum(dim=1))

    def _outlier(self, logits: Tensor) -> Tensor:
        """Return w_c (N, C) = 1 − exp(−((d_c + shift − offset_c) / scale_c)^shape_c), 0 where the base is negative."""
        distance = _distance(logits, self.means, self.distance)
        # The ratio is 1 + excess: for a shape of thousands, the digits of a small excess decide.
        excess = ((distance - self.offset) + (self.shift - self.scale)) / self.scale
        return -torch.expm1(-(self.shape * excess.clamp(min=-1).log1p()).exp())

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return max_c v̂_c − v̂_unknown (N,), negative if and only if unknown is the largest of the C + 1 logits."""
        logits, unknown = self.recalibrate(output)
        return logits.amax(dim=1) - unknown


@dataclass(frozen=True, eq=False)
class Nearest(Fitted):
    """The distance to the `k`-th nearest training sample (Sun et al. 2022), of features scaled to length 1.

    `features` (N, F) are those of the training set, unscaled and in their own type, which takes half the memory of
    float64 if they are float32.
    """

    features: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, k: int = 50) -> Self:
        """Keep the features of the training set; `k` is capped at N. The labels are checked but not used."""
        _check_counts(k=k)
        output = CheckedOutput.of(output)
        _training(output, label)
        features = _features(output)
        return cls(
            features.clone(memory_format=torch.contiguous_format),
            torch.tensor(min(k, len(features)), device=features.device),
        )

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −‖f/‖f‖ − t/‖t‖‖ (N,), from −2 to 0, with t the k-th nearest of the training features."""
        features = _features(output, self.features.shape[1])
        own, k = self.to(features.device), int(self.k)
        step = _rows(features.shape[1])
        rows = _rows(max(features.shape[1], min(step, len(self.features)) + 2 * k))
        return -torch.cat([own._distance(_unit(part), k, step) for part in features.split(rows)])

    def _distance(self, features: Tensor, k: int, step: int) -> Tensor:
        """Return the distance (N,) of features of length 1 to the k-th nearest, in chunks of `step` training rows."""
        near = features.new_empty(len(features), 0)
        index = torch.empty_like(near, dtype=torch.int64)
        for start in range(0, len(self.features), step):
            bank = _unit(self.features[start : start + step])
            # ‖f − t‖² = ‖f‖² − 2 (f·t − ‖t‖²/2)
            value, place = (features @ bank.T - bank.square().sum(dim=1) / 2).topk(min(k, len(bank)))
            near, index = torch.cat([near, value], dim=1), torch.cat([index, place + start], dim=1)
            near, chosen = near.topk(min(k, near.shape[1]))
            index = index.gather(1, chosen)
        # The product finds the neighbour; the difference gives the distance without the product's cancellation.
        distance: Tensor = torch.linalg.vector_norm(features - _unit(self.features[index[:, -1]]), dim=1)
        return distance


@dataclass(frozen=True, eq=False)
class Mahalanobis(Fitted):
    """The Mahalanobis distance of the features to the nearest class mean (Lee et al. 2018).

    `means` (C, F) are the class means. `factor` (F, F) is the lower Cholesky factor of the covariance that all classes
    share, Σ = 1/N Σ_i (f_i − μ_{y_i}) (f_i − μ_{y_i})ᵀ + ridge · tr/F · I, with tr the trace of the sum.
    """

    means: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, ridge: float = 1e-6) -> Self:
        """Fit on all samples. `ridge` times the mean variance of a feature is added to the diagonal of Σ.

        The ridge makes Σ regular even with more features than samples. With `ridge` = 0 a singular Σ is refused.
        """
        check_range("Mahalanobis", Limits(), ridge=ridge)
        output = CheckedOutput.of(output)
        logits, label = _training(output, label, every_class=True)
        features = _features(output)
        width, classes = features.shape[1], logits.shape[1]
        pairs = list(zip(features.split(_rows(width)), label.split(_rows(width)), strict=True))
        # A product with indicators, because scattered sums are not reproducible on a GPU.
        means = logits.new_zeros(classes, width)
        for part, own in pairs:
            means += functional.one_hot(own, classes).double().T @ part.double()
        means /= label.bincount(minlength=classes).unsqueeze(1)
        covariance = logits.new_zeros(width, width)
        for part, own in pairs:
            rest = part.double() - means[own]
            covariance += rest.T @ rest
        covariance /= len(features)
        covariance.diagonal().add_(ridge * covariance.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(covariance)
        # Rounding can hide a singular matrix: a pivot is then only the rounding error of its diagonal element.
        floor = width * torch.finfo(torch.float64).eps * covariance.diagonal()
        if bool(failed) or bool((factor.diagonal().square() <= floor).any()):
            raise MedicError(
                f"the covariance of {width} features of {len(features)} samples is singular with ridge {ridge}; "
                "fit on more samples per class" + (", or with a larger ridge" if bool(covariance.any()) else "")
            )
        return cls(means, factor.contiguous())

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c) (N,)."""
        features = _features(output, self.means.shape[1])
        own = self.to(features.device)
        means = own._whiten(own.means)
        parts = [_euclidean(own._whiten(part.double()), means) for part in features.split(_rows(features.shape[1]))]
        return -torch.cat([part.amin(dim=1) for part in parts]).square()

    def _whiten(self, features: Tensor) -> Tensor:
        """Return L⁻¹ f (N, F) with Σ = L Lᵀ: euclidean distances of the result are Mahalanobis distances."""
        white: Tensor = torch.linalg.solve_triangular(self.factor, features.T, upper=False)
        return white.T


def _distance(logits: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted euclidean and cosine distance (N, C) of logits (N, F) to means (C, F)."""
    return weights[0] * _euclidean(logits, means) + weights[1] * (1 - _unit(logits) @ _unit(means).T)


def _euclidean(values: Tensor, centres: Tensor) -> Tensor:
    """Return distances (N, C), computed from differences because a product would cancel."""
    return torch.cdist(values, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _unit(values: Tensor) -> Tensor:
    """Return every row scaled to length 1 in float64; a row of zeros stays zero."""
    return functional.normalize(values.double(), dim=1, eps=torch.finfo(torch.float64).tiny)


def _rows(width: int) -> int:
    """Return the number of rows of `width` values that fit into one chunk."""
    return max(1, CHUNK // width)


def _check_counts(**counts: int) -> None:
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


def _logits(output: AnyOutput, classes: int | None = None) -> Tensor:
    """Return finite logits (N, C) in float64, without a graph, for the classes that the score was fitted on."""
    return _checked("logits", "classes", CheckedOutput.of(output).logits.detach(), classes)


def _features(output: AnyOutput, width: int | None = None) -> Tensor:
    """Return finite features (N, F) in their own type, as many as the score was fitted on."""
    return _checked("features", "features", CheckedOutput.of(output).features, width)


def _training(output: AnyOutput, label: Values, *, every_class: bool = False) -> tuple[Tensor, Tensor]:
    """Return the logits (N, C) and labels (N,) to fit on; with `every_class`, every class must have a sample."""
    logits = _logits(output)
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
