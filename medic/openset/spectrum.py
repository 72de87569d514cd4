"""Full-spectrum evaluation, which ranks known and unknown samples from the source domains and the target together.

OpenOOD calls known samples from another domain *covariate-shifted*. A detector should accept them and reject unknown
samples from any domain. A score that is sensitive to the domain rejects covariate-shifted samples instead.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from medic.openset.metrics import Outcomes, Ranking, as_confidence
from medic.openset.scores import Values


def rank_groups(known: Values, unknown: Values) -> Ranking:
    """Rank the confidences of known samples, of shape (N,), and unknown samples, of shape (M,), ignoring classes."""
    groups = as_confidence(known), as_confidence(unknown)
    label = torch.cat(
        [torch.full_like(group, value, dtype=torch.int64) for group, value in zip(groups, (0, -1), strict=True)]
    )
    outcomes = Outcomes.of(label.clamp(min=0), label)
    outcomes.check_unknown()
    return outcomes.rank(torch.cat(groups))


class Place(NamedTuple):
    """Confidences of known and unknown samples, either from the sources or from the target. `unknown` may be empty."""

    known: Tensor
    unknown: Tensor

    @classmethod
    def of(cls, confidence: Tensor, known: Tensor) -> "Place":
        """Split confidences by a mask of known samples, both of shape (N,)."""
        return cls(confidence[known], confidence[~known])


class Spectrum(NamedTuple):
    """Confidences of held-out source samples and target samples."""

    source: Place
    target: Place

    def domain_auroc(self) -> float:
        """Return the score's domain sensitivity: P(source > target) + ½ P(source = target) for two known samples.

        At 0.5, the score does not depend on the domain. Above 0.5, known target images look unknown.
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
