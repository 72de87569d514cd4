"""Detect domain shift by comparing new unlabelled samples with held-out samples.

A `Reference` is fitted on one half of the held-out samples, and new samples are compared with the other half. If the
projection were fitted on the samples used in the comparison, the test would detect shifts that do not exist.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.openset.metrics import as_confidence, check_shapes
from medic.openset.scores import Values

LARGEST = 512
"""Maximum number of samples in each half of a reference, and of new samples in a test."""
COMPONENTS = 32
"""Number of dimensions that features are projected onto, as in Rabanser et al. (2019)."""
PERMUTATIONS = 999
SMALLEST_P = 2 / (PERMUTATIONS + 1)
"""Smallest p-value that both tests can reach. A permutation test cannot go below 1 / (PERMUTATIONS + 1)."""
FEWEST = 20
"""Minimum number of new samples, and of held-out samples in each half of a reference."""
FEWEST_PER_DOMAIN = 10
"""Minimum number of samples to compare with, for a separate test against a source domain."""


class Shift(NamedTuple):
    """Estimates and test results for new unlabelled samples, and for held-out samples from the source domains."""

    samples: int
    compared: int
    """Number of held-out samples."""
    accuracy: float
    """Estimated accuracy, assuming that all samples belong to known classes. Unknown samples lower it."""
    source_accuracy: float
    """The same estimate for the held-out samples."""
    unknown: float
    """Estimated fraction of unknown samples. Accepted unknown samples lower it, and a shift raises it."""
    rejected: float
    """Fraction of samples below the threshold."""
    source_rejected: float
    """Fraction of held-out samples below the threshold."""
    score_p: float
    """p-value of a two-sample Kolmogorov-Smirnov test on the confidences."""
    feature_p: float
    """p-value of a two-sample test on the features (maximum mean discrepancy)."""
    tested: int
    """Number of held-out samples in both tests: all, or those of the source domain most similar to the new samples."""
    small_domains: int
    """Number of source domains with too few samples to compare with for a separate test."""

    @property
    def p_value(self) -> float:
        """The smaller p-value, Bonferroni-corrected for two tests."""
        return min(1.0, 2 * min(self.score_p, self.feature_p))


@dataclass(frozen=True)
class Reference:
    """Held-out samples from the source domains, stored as tensors."""

    level: Tensor
    """Confidence reached by as many samples as are classified correctly (average thresholded confidence)."""
    confidence: Tensor
    """Confidences of the samples to compare with, of shape (N,)."""
    mean: Tensor
    """Mean feature, of shape (F,)."""
    basis: Tensor
    """Principal directions of the features, of shape (F, K)."""
    projected: Tensor
    """Projected features of the samples to compare with, of shape (N, K)."""
    domain: Tensor
    """Domain indices of the samples to compare with, of shape (N,)."""

    @classmethod
    def fit(cls, confidence: Values, correct: Values, features: Tensor, domain: Values) -> "Reference":
        """Fit a reference on M held-out samples.

        `correct` marks the samples that are classified correctly. `domain` contains domain indices.
        """
        confidence, correct = as_confidence(confidence).cpu(), torch.as_tensor(correct).bool().cpu()
        domain = torch.as_tensor(domain).to("cpu", torch.int64)
        check_shapes(confidence=confidence, correct=correct, features=features[:, 0], domain=domain)
        count = len(confidence)
        if count < 2 * FEWEST:
            raise MedicError(f"a reference requires at least {2 * FEWEST} held-out samples, got {count}")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: 2 * LARGEST]
        order = order[domain[order].argsort(stable=True)]  # each half gets the same share of every domain
        fitted, compared = order[::2], order[1::2]
        own, others = (features[part.to(features.device)].cpu().double() for part in (fitted, compared))
        mean = own.mean(0)
        basis = torch.linalg.svd(own - mean, full_matrices=False).Vh[:COMPONENTS].T
        return cls(
            _level(confidence[fitted], correct[fitted]),
            confidence[compared],
            mean.float(),
            basis.float().contiguous(),
            ((others - mean) @ basis).float(),
            domain[compared],
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], features: int) -> "Reference":
        """Restore a reference from its `tensors`. Raise a ValueError if they are inconsistent.

        `features` is the model's number of features.
        """
        if tensors.keys() != {field.name for field in fields(cls)}:
            raise ValueError("the reference in its weights file has missing or unexpected tensors")
        count, components = len(tensors["confidence"]), tensors["basis"].shape[-1]
        shapes = {
            "level": (),
            "confidence": (count,),
            "mean": (features,),
            "basis": (features, components),
            "projected": (count, components),
            "domain": (count,),
        }
        types = {"level": torch.float64, "confidence": torch.float64, "domain": torch.int64}
        for name, shape in shapes.items():
            if tensors[name].shape != shape or tensors[name].dtype != types.get(name, torch.float32):
                raise ValueError(f"tensor {name} of its reference has the wrong shape or type")
            infinite = name in ("level", "confidence") and not bool(tensors[name].isnan().any())
            if not infinite and not bool(tensors[name].isfinite().all()):
                raise ValueError(f"tensor {name} of its reference contains NaN or infinity")
        if not FEWEST <= count <= LARGEST or not 0 < components <= COMPONENTS:
            raise ValueError(f"the size of its reference is invalid: {count} images and {components} components")
        return cls(**tensors)

    def assess(self, confidence: Values, features: Tensor, threshold: float) -> Shift:
        """Compare new samples, given by confidences of shape (N,) and features of shape (N, F), with held-out samples.

        The estimated accuracy is the fraction of samples that reach `level`. The estimated fraction of unknown samples
        is the fraction below the threshold, corrected for the fraction of held-out samples below it, because the
        threshold also rejects some known samples.
        """
        confidence = as_confidence(confidence).cpu()
        if len(confidence) < FEWEST:
            raise MedicError(f"detecting a shift requires at least {FEWEST} images, got {len(confidence)}")
        accuracy, usual = (_mean(own >= self.level) for own in (confidence, self.confidence))
        rejected, usually_rejected = (_mean(own < threshold) for own in (confidence, self.confidence))
        beyond = (rejected - usually_rejected) / (1 - usually_rejected) if usually_rejected < 1 else 0.0
        score_p, feature_p, tested = self._compare(confidence, features)
        return Shift(
            samples=len(confidence),
            compared=len(self.confidence),
            accuracy=accuracy,
            source_accuracy=usual,
            unknown=max(0.0, beyond),
            rejected=rejected,
            source_rejected=usually_rejected,
            score_p=score_p,
            feature_p=feature_p,
            tested=tested,
            small_domains=sum(int(own.sum()) < FEWEST_PER_DOMAIN for own in self._domains()),
        )

    def _domains(self) -> list[Tensor]:
        """Return a mask of shape (N,) for the samples of every domain."""
        return [self.domain == number for number in self.domain.unique()]

    def _compare(self, confidence: Tensor, features: Tensor) -> tuple[float, float, int]:
        """Return the p-values of both tests, on at most `LARGEST` new samples, and the number of held-out samples.

        New samples may come from one source domain or from all of them. The result is for the group that matches them
        best, which keeps the tests valid in either case.
        """
        from scipy.stats import ks_2samp

        chosen = torch.randperm(len(confidence), generator=torch.Generator().manual_seed(0))[:LARGEST]
        new = features[chosen.to(features.device)].cpu().double()
        confidence, projected = confidence[chosen], (new - self.mean.double()) @ self.basis.double()
        domains = [own for own in self._domains() if int(own.sum()) >= FEWEST_PER_DOMAIN]
        groups = [torch.ones_like(self.domain, dtype=torch.bool), *domains]
        tests = [
            (
                float(ks_2samp(self.confidence[group].numpy(), confidence.numpy()).pvalue),
                mmd_test(self.projected[group].double(), projected),
                int(group.sum()),
            )
            for group in groups
        ]
        return max(tests, key=lambda test: min(test[:2]))


def _mean(mask: Tensor) -> float:
    return float(mask.double().mean())


def _level(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return the confidence reached by as many samples as are classified correctly (Garg et al. 2022)."""
    right = int(correct.sum())
    return confidence.sort(descending=True).values[right - 1] if right else confidence.new_tensor(math.inf)


def mmd_test(reference: Tensor, new: Tensor, permutations: int = PERMUTATIONS) -> float:
    """Return the p-value of a permutation test on the maximum mean discrepancy between two samples.

    The samples have shapes (N, K) and (M, K). The kernel is Gaussian, with the median distance between the pooled
    samples as its width (Gretton et al. 2012). Every call uses the same permutations.
    """
    joined = torch.cat([reference, new])
    squared = torch.cdist(joined, joined).square()
    apart = squared[squared > 0]
    kernel = torch.exp(-squared / (apart.median() if len(apart) else 1.0))
    weight = torch.cat([torch.full((len(reference),), 1 / len(reference)), torch.full((len(new),), -1 / len(new))])
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(len(joined), generator=generator) for _ in range(permutations)])
    weights = torch.cat([weight[None], weight[orders]]).to(kernel)
    discrepancy = ((weights @ kernel) * weights).sum(1)
    # The observed value counts as one permutation, so that the p-value is never 0.
    return _mean(discrepancy >= discrepancy[0] - 1e-12)  # up to rounding
