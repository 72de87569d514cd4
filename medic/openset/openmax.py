"""OpenMax: logits recalibrated with extreme value theory."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from medic.errors import check_choice
from medic.openset.fitting import Fitted, check_counts, euclidean, read_logits, read_training, unit
from medic.openset.scores import AnyOutput, Values
from medic.openset.weibull import fit_weibull
from medic.utils.parts import Limits, check_range

DISTANCES: dict[str, tuple[float, float]] = {"euclidean": (1.0, 0.0), "cosine": (0.0, 1.0), "eucos": (1 / 200, 1.0)}
"""Weights of ‖v − μ‖ and 1 − cos(v, μ) in the distance between logits v and a class mean μ, by name."""


class Recalibrated(NamedTuple):
    """Recalibrated logits v̂ of shape (N, C) and unknown logits of shape (N,), in float64."""

    logits: Tensor
    unknown: Tensor


@dataclass(frozen=True, eq=False)
class OpenMax(Fitted):
    """OpenMax (Bendale and Boult 2016), which assigns logits far from their class mean to an unknown class.

    `means`, of shape (C, C), contains the mean logits μ_c for every class c. A Weibull distribution with `shape` and
    `scale`, both of shape (C,), models d + `shift` − `offset`, where d is the distance between logits and μ_c. `alpha`
    is the number of top classes to recalibrate. `distance`, of shape (2,), contains the weights of the Euclidean and
    the cosine distance.
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
        """Fit every class on its correctly classified samples, or on all its samples if none is correct.

        The Weibull distribution is fitted to the `tail` largest distances to μ_c, after subtracting the smallest of
        them and adding `shift`. `alpha` is capped at C. `distance` is "euclidean" (as in OpenOOD), "cosine", or "eucos"
        (as in the original paper), which is euclidean / 200 + cosine.
        """
        check_counts(tail=tail, alpha=alpha)
        check_range("OpenMax", Limits(above=True), shift=shift)
        weights = DISTANCES[check_choice("distance", distance, DISTANCES)]
        logits, label = read_training(output, label, every_class=True)
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

        w_c is the Weibull probability of a distance no larger than the one between v and μ_c. For the A = `alpha`
        classes with the largest logits, ω_c = (A + 1 − r) / A, where r = 1..A is the rank. For other classes, ω_c = 0.
        As in the original, recalibration raises negative logits.
        """
        logits = read_logits(output, len(self.means))
        own = self.to(logits.device)
        rank = torch.arange(1, logits.shape[1] + 1, dtype=torch.float64, device=logits.device)
        by_rank = ((own.alpha + 1 - rank) / own.alpha).clamp(min=0)
        order = logits.argsort(dim=1, descending=True, stable=True)
        taken = torch.zeros_like(logits).scatter(1, order, by_rank.expand_as(logits)) * own._outlier(logits)
        return Recalibrated(logits * (1 - taken), (logits * taken).sum(dim=1))

    def _outlier(self, logits: Tensor) -> Tensor:
        """Return w_c = 1 − exp(−((d_c + shift − offset_c) / scale_c)^shape_c), of shape (N, C).

        Where the base of the power is negative, w_c is 0.
        """
        distance = _distance(logits, self.means, self.distance)
        # The ratio is 1 + excess. With a shape in the thousands, the result depends on the digits of a small excess.
        excess = ((distance - self.offset) + (self.shift - self.scale)) / self.scale
        return -torch.expm1(-(self.shape * excess.clamp(min=-1).log1p()).exp())

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return max_c v̂_c − v̂_unknown, of shape (N,). Negative values mean that the unknown logit is the largest."""
        logits, unknown = self.recalibrate(output)
        return logits.amax(dim=1) - unknown


def _distance(logits: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of Euclidean and cosine distances between logits and means, of shape (N, C)."""
    return weights[0] * euclidean(logits, means) + weights[1] * (1 - unit(logits) @ unit(means).T)
