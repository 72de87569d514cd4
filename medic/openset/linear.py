"""Scores that use the weights of a linear head: shaped features, residuals and decision-boundary distances."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from medic.openset.fitting import Fitted, read_features, read_logits, read_training, rows_of
from medic.openset.scores import AnyOutput, CheckedOutput, Values, energy
from medic.utils.outputs import LinearHead
from medic.utils.parts import FRACTION, check_range


@dataclass(frozen=True, eq=False)
class Shaped(Fitted):
    """Base class for scores that modify the features, recompute the logits and return their energy.

    `weight`, of shape (C, F), and `bias`, of shape (C,), are the parameters of the head.
    """

    weight: Tensor
    bias: Tensor

    def shape(self, features: Tensor) -> Tensor:
        """Modify features of shape (N, F) before the head reads them."""
        raise NotImplementedError

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy of the modified features, of shape (N,)."""
        features = read_features(output, self.weight.shape[1])
        own = self.to(features.device)
        parts = features.split(rows_of(features.shape[1]))
        return torch.cat([energy(own.shape(part.double()) @ own.weight.T + own.bias) for part in parts])


@dataclass(frozen=True, eq=False)
class ReAct(Shaped):
    """The energy of features clipped at `limit`, a quantile of the training features (Sun et al. 2021)."""

    limit: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, quantile: float = 0.9) -> Self:
        """Compute the quantile over all features of all samples."""
        check_range("ReAct", FRACTION, quantile=quantile)
        read_training(output, label)
        return cls(*_double(head), _quantile(read_features(output).flatten(), quantile))

    def shape(self, features: Tensor) -> Tensor:
        """Clip features of shape (N, F)."""
        return features.clamp(max=self.limit)


@dataclass(frozen=True, eq=False)
class Ash(Shaped):
    """The energy after pruning small features and scaling up the rest (Djurisic et al. 2023, ASH-S).

    `kept` is the number of features that are not pruned.
    """

    kept: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, pruned: float = 0.65) -> Self:
        """Store the head. `pruned` is the fraction of features to prune. Nothing is learned from the samples."""
        return cls(*_double(head), _count_kept("ASH", read_features(output), pruned))

    def shape(self, features: Tensor) -> Tensor:
        """Set all but the largest features to 0, and multiply the largest by exp(sum of all / sum of the largest)."""
        values, index = features.topk(int(self.kept), dim=1)
        return torch.zeros_like(features).scatter(1, index, values * _share_factor(features, values))


@dataclass(frozen=True, eq=False)
class Scale(Shaped):
    """The energy of features that are scaled up according to the share of the largest ones (Xu et al. 2024).

    `kept` is the number of features that are treated as the largest.
    """

    kept: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, pruned: float = 0.65) -> Self:
        """Store the head. `pruned` is the fraction of features not treated as the largest. Samples are not used."""
        return cls(*_double(head), _count_kept("SCALE", read_features(output), pruned))

    def shape(self, features: Tensor) -> Tensor:
        """Multiply features of shape (N, F) by exp(sum of all / sum of the largest)."""
        return features * _share_factor(features, features.topk(int(self.kept), dim=1).values)


@dataclass(frozen=True, eq=False)
class Residual(Fitted):
    """The negative norm of the features outside the principal subspace of the training features (Wang et al. 2022).

    `origin`, of shape (F,), is the point where all logits are zero. `basis`, of shape (F, R), spans the orthogonal
    complement of the principal subspace.
    """

    origin: Tensor
    basis: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, dimensions: int | None = None) -> Self:
        """Fit the principal subspace.

        The default of `dimensions` is 1000 for 2048 or more features, 512 for 768 or more, and half of them otherwise.
        """
        read_training(output, label)
        return cls(*_fit_subspace(read_features(output), head, dimensions))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the negative norm of the residual, of shape (N,)."""
        return -_residual(read_features(output, len(self.origin)), self.origin, self.basis)


@dataclass(frozen=True, eq=False)
class Vim(Fitted):
    """The energy minus a virtual logit, which is the scaled norm of the residual (Wang et al. 2022).

    `origin` and `basis` are defined as in `Residual`. `scale` is chosen so that, on training samples, the mean virtual
    logit equals the mean of the largest logit.
    """

    origin: Tensor
    basis: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, dimensions: int | None = None) -> Self:
        """Fit the subspace as in `Residual.fit`, and the scale."""
        output = CheckedOutput.of(output)
        logits, _ = read_training(output, label)
        features = read_features(output)
        origin, basis = _fit_subspace(features, head, dimensions)
        return cls(origin, basis, logits.amax(dim=1).mean() / _residual(features, origin, basis).mean())

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy minus the virtual logit, of shape (N,)."""
        output = CheckedOutput.of(output)
        features = read_features(output, len(self.origin))
        read_logits(output)
        return energy(output) - self.scale.to(features.device) * _residual(features, self.origin, self.basis)


@dataclass(frozen=True, eq=False)
class Fdbd(Fitted):
    """The mean distance from the features to the decision boundaries with the other classes (Liu and Qin 2024).

    The distance is divided by the distance to `mean`, the mean training feature, of shape (F,). `gaps`, of shape
    (C, C), contains the distances between the head's weights for each pair of classes.
    """

    mean: Tensor
    gaps: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead) -> Self:
        """Compute the mean feature, and the distances between the class weights of the head."""
        read_training(output, label)
        weight, _ = _double(head)
        gaps = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        gaps.fill_diagonal_(1.0)  # so that the predicted class itself contributes 0 / 1
        return cls(read_features(output).double().mean(dim=0), gaps)

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the mean of (z_ŷ − z_c) / ‖w_ŷ − w_c‖ over the other classes c, divided by ‖f − μ‖, of shape (N,)."""
        output = CheckedOutput.of(output)
        features, logits = read_features(output, len(self.mean)), read_logits(output, len(self.gaps))
        own = self.to(features.device)
        top, predicted = logits.max(dim=1, keepdim=True)
        distances = ((top - logits) / own.gaps[predicted.squeeze(1)]).sum(dim=1) / max(1, logits.shape[1] - 1)
        length: Tensor = torch.linalg.vector_norm(features.double() - own.mean, dim=1)
        return distances / length.clamp(min=1e-8)


def _double(head: LinearHead) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a head in float64, detached."""
    return head.weight.detach().double(), head.bias.detach().double()


def _quantile(values: Tensor, quantile: float) -> Tensor:
    """Return a linearly interpolated quantile. `torch.quantile` is limited to 16 million values."""
    position = quantile * (len(values) - 1)
    low = int(position)
    below, above = (values.kthvalue(min(rank, len(values))).values.double() for rank in (low + 1, low + 2))
    return torch.lerp(below, above, position - low)


def _count_kept(name: str, features: Tensor, pruned: float) -> Tensor:
    check_range(name, FRACTION, pruned=pruned)
    return torch.tensor(max(1, features.shape[1] - round(pruned * features.shape[1])), device=features.device)


def _share_factor(features: Tensor, largest: Tensor) -> Tensor:
    """Return exp(sum of all / sum of the largest features), of shape (N, 1). The result is finite for any features.

    In the authors' networks, features are never negative and hardly ever all zero.
    """
    share = features.sum(dim=1, keepdim=True) / largest.sum(dim=1, keepdim=True)
    return share.nan_to_num(nan=1.0).clamp(-100, 100).exp()


def principal_dimensions(features: Tensor) -> int:
    """Return the default dimension of the principal subspace of features of shape (N, F)."""
    width = features.shape[1]
    usual = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return min(usual, len(features) // 2)  # with fewer images than dimensions, the residual would vanish


def _fit_subspace(features: Tensor, head: LinearHead, dimensions: int | None) -> tuple[Tensor, Tensor]:
    """Return the origin, of shape (F,), and a basis of the directions of least variance, of shape (F, R)."""
    weight, bias = _double(head)
    width = features.shape[1]
    if dimensions is None:
        dimensions = principal_dimensions(features)
    origin = -(torch.linalg.pinv(weight) @ bias)
    covariance = weight.new_zeros(width, width)
    for part in features.split(rows_of(width)):
        centred = part.double() - origin
        covariance += centred.T @ centred
    vectors = torch.linalg.eigh(covariance / len(features)).eigenvectors  # in order of increasing variance
    return origin, vectors[:, : width - dimensions].contiguous()


def _residual(features: Tensor, origin: Tensor, basis: Tensor) -> Tensor:
    """Return the norm of features of shape (N, F) along a basis of shape (F, R), as a tensor of shape (N,)."""
    origin, basis = origin.to(features.device), basis.to(features.device)
    parts = features.split(rows_of(features.shape[1]))
    return torch.cat([torch.linalg.vector_norm((part.double() - origin) @ basis, dim=1) for part in parts])
