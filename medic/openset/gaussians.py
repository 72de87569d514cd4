"""Scores based on Gaussian distributions of the features."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError
from medic.openset.fitting import Fitted, euclidean, read_features, read_training, rows_of
from medic.openset.scores import AnyOutput, CheckedOutput, Values
from medic.utils.parts import Limits, check_range


@dataclass(frozen=True, eq=False)
class Mahalanobis(Fitted):
    """The negative Mahalanobis distance from the features to the nearest class mean (Lee et al. 2018).

    `means`, of shape (C, F), contains the class means. `factor`, of shape (F, F), is the lower Cholesky factor of the
    shared covariance Σ = 1/N Σ_i (f_i − μ_{y_i}) (f_i − μ_{y_i})ᵀ + ridge · tr/F · I, where tr is the trace of the
    first term.
    """

    means: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, ridge: float = 1e-6) -> Self:
        """Fit on all samples, adding `ridge` times the mean feature variance to the diagonal of Σ.

        The ridge keeps Σ invertible even with more features than samples. Without it, a singular Σ raises an error.
        """
        check_range("Mahalanobis", Limits(), ridge=ridge)
        features, label, classes = _read(output, label)
        means, covariance = _estimate(features, label, classes)
        return cls(means, _factor(covariance, len(label), ridge))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c) for every sample, of shape (N,)."""
        features = read_features(output, self.means.shape[1])
        own = self.to(features.device)
        return -_squared_distances(features, own.means, own.factor).amin(dim=1)


@dataclass(frozen=True, eq=False)
class RelativeMahalanobis(Fitted):
    """The Mahalanobis distance to the overall mean, minus the distance to the nearest class mean (Ren et al. 2021).

    `means` and `factor` are defined as in `Mahalanobis`. `centre`, of shape (1, F), is the mean of all samples.
    `background`, of shape (F, F), is the Cholesky factor of their covariance.
    """

    means: Tensor
    factor: Tensor
    centre: Tensor
    background: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, ridge: float = 1e-6) -> Self:
        """Fit both Gaussian distributions on all samples. `ridge` is used as in `Mahalanobis.fit`."""
        check_range("the relative Mahalanobis distance", Limits(), ridge=ridge)
        features, label, classes = _read(output, label)
        means, within = _estimate(features, label, classes)
        share = label.bincount(minlength=classes).double().unsqueeze(1) / len(label)
        centre = (share * means).sum(dim=0, keepdim=True)
        between = (means - centre).T @ (share * (means - centre))
        factor = _factor(within, len(label), ridge)
        return cls(means, factor, centre, _factor(within + between, len(label), ridge))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return d_0 − min_c d_c for every sample, of shape (N,). d_0 and d_c are squared Mahalanobis distances."""
        features = read_features(output, self.means.shape[1])
        own = self.to(features.device)
        nearest = _squared_distances(features, own.means, own.factor).amin(dim=1)
        return _squared_distances(features, own.centre, own.background).squeeze(1) - nearest


def _read(output: AnyOutput, label: Values) -> tuple[Tensor, Tensor, int]:
    """Return features of shape (N, F) and labels of shape (N,) to fit on, and the number of classes."""
    output = CheckedOutput.of(output)
    logits, label = read_training(output, label, every_class=True)
    return read_features(output), label, logits.shape[1]


def _estimate(features: Tensor, label: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the class means, of shape (C, F), and the shared covariance within classes, of shape (F, F)."""
    width = features.shape[1]
    pairs = list(zip(features.split(rows_of(width)), label.split(rows_of(width)), strict=True))
    # A matrix product, because scatter-add is not reproducible on a GPU.
    means = torch.zeros(classes, width, dtype=torch.float64, device=features.device)
    for part, own in pairs:
        means += functional.one_hot(own, classes).double().T @ part.double()
    means /= label.bincount(minlength=classes).unsqueeze(1)
    covariance = means.new_zeros(width, width)
    for part, own in pairs:
        rest = part.double() - means[own]
        covariance += rest.T @ rest
    return means, covariance / len(features)


def _factor(covariance: Tensor, samples: int, ridge: float) -> Tensor:
    """Return the Cholesky factor, of shape (F, F), of a covariance plus `ridge` times the mean variance.

    Raise an error if the covariance of these samples is singular.
    """
    width = len(covariance)
    ridged = covariance.clone()
    ridged.diagonal().add_(ridge * covariance.diagonal().mean())
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(ridged)
    # Rounding can hide a singular matrix. A pivot is then as small as the rounding error of its diagonal element.
    floor = width * torch.finfo(torch.float64).eps * ridged.diagonal()
    if bool(failed) or bool((factor.diagonal().square() <= floor).any()):
        raise MedicError(
            f"the covariance of {width} features of {samples} samples is singular with ridge {ridge}; "
            "fit on more samples per class" + (" or use a larger ridge" if bool(covariance.any()) else "")
        )
    return factor.contiguous()


def _squared_distances(features: Tensor, means: Tensor, factor: Tensor) -> Tensor:
    """Return (f − μ_c)ᵀ Σ⁻¹ (f − μ_c), of shape (N, C), where Σ = L Lᵀ and L is `factor`."""
    white = _whiten(means, factor)
    parts = features.split(rows_of(features.shape[1]))
    return torch.cat([euclidean(_whiten(part.double(), factor), white) for part in parts]).square()


def _whiten(features: Tensor, factor: Tensor) -> Tensor:
    """Return L⁻¹ f, of shape (N, F). Euclidean distances between the results are Mahalanobis distances."""
    white: Tensor = torch.linalg.solve_triangular(factor, features.T, upper=False)
    return white.T
