"""OpenMax: logits that are recalibrated by extreme value theory."""

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
"""The weights of ‖v − μ‖ and of 1 − cos(v, μ) in the distance of logits v to a class mean μ."""


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

        w_c is the Weibull probability of a distance of at most that of v to μ_c. ω_c = (A + 1 − r) / A for the class of
        rank r = 1..A by logit, A = `alpha`, and 0 for the others. As in the original, a negative logit is raised.
        """
        logits = read_logits(output, len(self.means))
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


def _distance(logits: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted euclidean and cosine distance (N, C) of logits (N, F) to means (C, F)."""
    return weights[0] * euclidean(logits, means) + weights[1] * (1 - unit(logits) @ unit(means).T)
