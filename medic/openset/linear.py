"""Scores that read the weights of a linear head: shaped features, residuals, and distances to decision boundaries."""

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
    """The energy of the logits of shaped features. `weight` (C, F) and `bias` (C,) are the head's."""

    weight: Tensor
    bias: Tensor

    def shape(self, features: Tensor) -> Tensor:
        """Change features (N, F) before the head reads them."""
        raise NotImplementedError

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy (N,) of the shaped features."""
        features = read_features(output, self.weight.shape[1])
        own = self.to(features.device)
        parts = features.split(rows_of(features.shape[1]))
        return torch.cat([energy(own.shape(part.double()) @ own.weight.T + own.bias) for part in parts])


@dataclass(frozen=True, eq=False)
class ReAct(Shaped):
    """Features cut off at a quantile of the training features (Sun et al. 2021), `limit` ()."""

    limit: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, quantile: float = 0.9) -> Self:
        """Take the quantile of all features of all samples together."""
        check_range("ReAct", FRACTION, quantile=quantile)
        read_training(output, label)
        values = read_features(output).double().flatten().sort().values
        return cls(*_double(head), _quantile(values, quantile))

    def shape(self, features: Tensor) -> Tensor:
        """Cut features (N, F) off."""
        return features.clamp(max=self.limit)


@dataclass(frozen=True, eq=False)
class Ash(Shaped):
    """The largest features, scaled up by the share of the sum that the others had (Djurisic et al. 2023, ASH-S).

    `kept` () is the number of features that are kept.
    """

    kept: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, pruned: float = 0.65) -> Self:
        """Keep all features but the fraction `pruned`. Nothing is learned from the samples."""
        return cls(*_double(head), _count_kept("ASH", read_features(output), pruned))

    def shape(self, features: Tensor) -> Tensor:
        """Keep the largest of the features (N, F), multiplied by exp(sum of all / sum of those)."""
        values, index = features.topk(int(self.kept), dim=1)
        return torch.zeros_like(features).scatter(1, index, values * _share_factor(features, values))


@dataclass(frozen=True, eq=False)
class Scale(Shaped):
    """Features scaled up by the share of their sum that the largest of them have (Xu et al. 2024).

    `kept` () is the number of the largest features.
    """

    kept: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, pruned: float = 0.65) -> Self:
        """Take all features but the fraction `pruned` for the largest. Nothing is learned from the samples."""
        return cls(*_double(head), _count_kept("SCALE", read_features(output), pruned))

    def shape(self, features: Tensor) -> Tensor:
        """Multiply features (N, F) by exp(sum of all / sum of the largest)."""
        return features * _share_factor(features, features.topk(int(self.kept), dim=1).values)


@dataclass(frozen=True, eq=False)
class Residual(Fitted):
    """The part of the features outside of the subspace in which training features vary most (Wang et al. 2022).

    `origin` (F,) is the point at which all logits are zero, and `basis` (F, R) spans the other directions.
    """

    origin: Tensor
    basis: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, dimensions: int | None = None) -> Self:
        """Find the subspace of so many dimensions: by default 1000 from 2048 features on, 512 from 768 on, or half."""
        read_training(output, label)
        return cls(*_fit_subspace(read_features(output), head, dimensions))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the negative length (N,) of the residual."""
        return -_residual(read_features(output, len(self.origin)), self.origin, self.basis)


@dataclass(frozen=True, eq=False)
class Vim(Fitted):
    """The energy minus a virtual logit, the scaled length of the residual (Wang et al. 2022).

    `origin` (F,) and `basis` (F, R) are those of `Residual`. `scale` () makes the mean virtual logit of the training
    samples as large as their mean largest logit.
    """

    origin: Tensor
    basis: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead, *, dimensions: int | None = None) -> Self:
        """Find the subspace as `Residual` does, and the scale."""
        output = CheckedOutput.of(output)
        logits, _ = read_training(output, label)
        features = read_features(output)
        origin, basis = _fit_subspace(features, head, dimensions)
        return cls(origin, basis, logits.amax(dim=1).mean() / _residual(features, origin, basis).mean())

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy minus the virtual logit (N,)."""
        output = CheckedOutput.of(output)
        features = read_features(output, len(self.origin))
        read_logits(output)
        return energy(output) - self.scale.to(features.device) * _residual(features, self.origin, self.basis)


@dataclass(frozen=True, eq=False)
class Fdbd(Fitted):
    """The mean distance of the features to the decision boundaries of the other classes (Liu and Qin 2024).

    It is relative to the distance from `mean` (F,), the mean of the training features. `gaps` (C, C) are the distances
    between the weights of two classes.
    """

    mean: Tensor
    gaps: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, head: LinearHead) -> Self:
        """Take the mean of the features, and the distances between the weights of the head."""
        read_training(output, label)
        weight, _ = _double(head)
        gaps = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        gaps.fill_diagonal_(1.0)  # the distance of a class to itself counts as 0 / 1
        return cls(read_features(output).double().mean(dim=0), gaps)

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the mean over the other classes of (z_ŷ − z_c) / ‖w_ŷ − w_c‖, divided by ‖f − μ‖ (N,)."""
        output = CheckedOutput.of(output)
        features, logits = read_features(output, len(self.mean)), read_logits(output, len(self.gaps))
        own = self.to(features.device)
        top, predicted = logits.max(dim=1, keepdim=True)
        distances = ((top - logits) / own.gaps[predicted.squeeze(1)]).sum(dim=1) / max(1, logits.shape[1] - 1)
        length: Tensor = torch.linalg.vector_norm(features.double() - own.mean, dim=1)
        return distances / length.clamp(min=1e-8)


def _double(head: LinearHead) -> tuple[Tensor, Tensor]:
    """Return the weights of a head in float64, without a graph."""
    return head.weight.detach().double(), head.bias.detach().double()


def _quantile(ordered: Tensor, quantile: float) -> Tensor:
    """Return a quantile () of sorted values (N,), interpolated linearly; torch's own takes 16 million values only."""
    position = quantile * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], position - low)


def _count_kept(name: str, features: Tensor, pruned: float) -> Tensor:
    check_range(name, FRACTION, pruned=pruned)
    return torch.tensor(max(1, features.shape[1] - round(pruned * features.shape[1])), device=features.device)


def _share_factor(features: Tensor, largest: Tensor) -> Tensor:
    """Return exp(sum of all / sum of the largest features) (N, 1), finite also for sums near zero.

    The authors' networks have features of at least zero, and hardly an image whose features are all zero.
    """
    share = features.sum(dim=1, keepdim=True) / largest.sum(dim=1, keepdim=True)
    return share.nan_to_num(nan=1.0).clamp(-100, 100).exp()


def _fit_subspace(features: Tensor, head: LinearHead, dimensions: int | None) -> tuple[Tensor, Tensor]:
    """Return the origin (F,), and a basis (F, R) of the directions in which features (N, F) vary least."""
    weight, bias = _double(head)
    width = features.shape[1]
    if dimensions is None:
        dimensions = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
        dimensions = min(dimensions, len(features) // 2)  # fewer images would leave no residual
    origin = -(torch.linalg.pinv(weight) @ bias)
    covariance = weight.new_zeros(width, width)
    for part in features.split(rows_of(width)):
        centred = part.double() - origin
        covariance += centred.T @ centred
    vectors = torch.linalg.eigh(covariance / len(features)).eigenvectors  # by rising variance
    return origin, vectors[:, : width - dimensions].contiguous()


def _residual(features: Tensor, origin: Tensor, basis: Tensor) -> Tensor:
    """Return the length (N,) of features (N, F) in the directions of a basis (F, R)."""
    origin, basis = origin.to(features.device), basis.to(features.device)
    parts = features.split(rows_of(features.shape[1]))
    return torch.cat([torch.linalg.vector_norm((part.double() - origin) @ basis, dim=1) for part in parts])
