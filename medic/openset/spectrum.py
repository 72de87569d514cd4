"""Full-spectrum evaluation: known and unknown samples, of the source domains and of the target, ranked together.

OpenOOD calls known samples of another domain *covariate-shifted*: a detector should accept them, and reject unknown
samples wherever they come from. A score that reacts to the domain rejects them instead.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from medic.openset.metrics import Outcomes, Ranking, as_confidence
from medic.openset.scores import Values


def rank_groups(known: Values, unknown: Values) -> Ranking:
    """Rank the confidences of known (N,) and of unknown samples (M,), without their classes."""
    groups = as_confidence(known), as_confidence(unknown)
    label = torch.cat(
        [torch.full_like(group, value, dtype=torch.int64) for group, value in zip(groups, (0, -1), strict=True)]
    )
    outcomes = Outcomes.of(label.clamp(min=0), label)
    outcomes.check_unknown()
    return outcomes.rank(torch.cat(groups))


class Place(NamedTuple):
    """The confidences of the known and of the unknown samples of one place, (N,) each; there may be no unknown one."""

    known: Tensor
    unknown: Tensor

    @classmethod
    def of(cls, confidence: Tensor, known: Tensor) -> "Place":
        """Divide confidences (N,) by a mask (N,) of the known samples."""
        return cls(confidence[known], confidence[~known])


class Spectrum(NamedTuple):
    """Held-out samples of the source domains, and samples of a target."""

    source: Place
    target: Place

    def domain_auroc(self) -> float:
        """Return the score's domain sensitivity: P(source > target) + ½ P(source = target) for two known samples.

        At 0.5 the score does not react to the domain. Above it, known images of the target look unknown.
        """
        return rank_groups(self.source.known, self.target.known).auroc()

    def metrics(self) -> dict[str, float]:
        """Return the domain sensitivity and, if there are unknown samples, OpenOOD's full-spectrum AUROC and FPR95."""
        metrics = {"domain_auroc": self.domain_auroc()}
        known, unknown = (torch.cat(groups) for groups in zip(self.source, self.target, strict=True))
        if len(unknown):
            ranking = rank_groups(known, unknown)
            metrics |= {"fs_auroc": ranking.auroc(), "fs_fpr95": ranking.fpr95()}
        return metrics
