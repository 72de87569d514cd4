"""Compare new samples, which have no labels, with held-out samples that the model was not trained on.

A `Reference` is fitted on one half of the held-out samples and keeps the other half to compare with: a projection that
is fitted on the samples it is compared with would see a shift where there is none.
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
"""The most samples in each half of a reference, and the most new samples of a test."""
COMPONENTS = 32
"""The dimension to which features are projected, as in Rabanser et al. (2019)."""
PERMUTATIONS = 999
SMALLEST_P = 2 / (PERMUTATIONS + 1)
"""The smallest p-value that both tests can reach: a permutation test has none below 1 / (PERMUTATIONS + 1)."""
FEWEST = 20
"""The fewest new samples that anything is said about, and held-out samples in each half of a reference."""


class Shift(NamedTuple):
    """Estimates and test results for new samples, which have no labels, and for held-out samples of the sources."""

    samples: int
    compared: int
    """The number of held-out samples."""
    accuracy: float
    """The estimated accuracy if all samples are of known classes; unknown samples lower it."""
    source_accuracy: float
    """The same estimate for the held-out samples."""
    unknown: float
    """The estimated share of unknown samples: unknown samples that are accepted lower it, a shift raises it."""
    rejected: float
    """The share of samples below the threshold."""
    source_rejected: float
    """The share of held-out samples below the threshold."""
    score_p: float
    """The p-value of a two-sample test on the confidences (Kolmogorov and Smirnov)."""
    feature_p: float
    """The p-value of a two-sample test on the features (maximum mean discrepancy)."""
    # Both against the held-out samples of the domain that suits the new samples best, or of all domains together.

    @property
    def p_value(self) -> float:
        """The smaller p-value, corrected for two tests (Bonferroni)."""
        return min(1.0, 2 * min(self.score_p, self.feature_p))


@dataclass(frozen=True)
class Reference:
    """Held-out samples of the sources, as tensors."""

    level: Tensor
    """The confidence () that as many samples reach as are classified correctly (average thresholded confidence)."""
    confidence: Tensor
    """Confidences (N,) of the samples to compare with."""
    mean: Tensor
    """The mean feature (F,)."""
    basis: Tensor
    """The principal directions (F, K) of the features."""
    projected: Tensor
    """The projected features (N, K) of the samples to compare with."""
    domain: Tensor
    """The numbers (N,) of their domains."""

    @classmethod
    def fit(cls, confidence: Values, correct: Values, features: Tensor, domain: Values) -> "Reference":
        """Fit a reference on samples with confidences (M,), features (M, F) and numbers of their domains (M,).

        `correct` (M,) says which samples are classified correctly.
        """
        confidence, correct = as_confidence(confidence).cpu(), torch.as_tensor(correct).bool().cpu()
        domain = torch.as_tensor(domain).to("cpu", torch.int64)
        check_shapes(confidence=confidence, correct=correct, features=features[:, 0], domain=domain)
        count = len(confidence)
        if count < 2 * FEWEST:
            raise MedicError(f"{count} held-out samples are too few to compare with: {2 * FEWEST} are needed")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: 2 * LARGEST]
        fitted, compared = order.chunk(2)
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
        """Every field by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], features: int) -> "Reference":
        """Restore a reference from its `tensors`; raise a ValueError if they do not fit together.

        `features` is the number of features F of the model.
        """
        if tensors.keys() != {field.name for field in fields(cls)}:
            raise ValueError("its weights file lacks tensors of the reference, or has others")
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
                raise ValueError(f"the tensor {name} of its reference has the wrong shape or type")
            infinite = name in ("level", "confidence") and not bool(tensors[name].isnan().any())
            if not infinite and not bool(tensors[name].isfinite().all()):
                raise ValueError(f"the tensor {name} of its reference has NaN or infinity")
        if not FEWEST <= count <= LARGEST or not 0 < components <= COMPONENTS:
            raise ValueError(f"its reference has {count} images and {components} components")
        return cls(**tensors)

    def assess(self, confidence: Values, features: Tensor, threshold: float) -> Shift:
        """Compare new samples with confidences (N,) and features (N, F) with the held-out ones.

        Accuracy is estimated by the share of samples that reach `level`. The share of unknown samples is that of the
        samples below the threshold, beyond the share of held-out samples below it: of known samples like these, the
        threshold would reject as many.
        """
        confidence = as_confidence(confidence).cpu()
        if len(confidence) < FEWEST:
            raise MedicError(f"{len(confidence)} images are too few to be watched: {FEWEST} are needed")
        accuracy, usual = (_mean(own >= self.level) for own in (confidence, self.confidence))
        rejected, usually_rejected = (_mean(own < threshold) for own in (confidence, self.confidence))
        beyond = (rejected - usually_rejected) / (1 - usually_rejected) if usually_rejected < 1 else 0.0
        score_p, feature_p = self._compare(confidence, features)
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
        )

    def _compare(self, confidence: Tensor, features: Tensor) -> tuple[float, float]:
        """Return the p-values of both tests, on at most `LARGEST` new samples.

        New samples may come from one of the source domains, or from all of them. The group in which they look most
        usual counts, which keeps the tests valid for each.
        """
        from scipy.stats import ks_2samp

        chosen = torch.randperm(len(confidence), generator=torch.Generator().manual_seed(0))[:LARGEST]
        new = features[chosen.to(features.device)].cpu().double()
        confidence, projected = confidence[chosen], (new - self.mean.double()) @ self.basis.double()
        domains = [self.domain == number for number in self.domain.unique()]
        groups = [torch.ones_like(self.domain, dtype=torch.bool), *(own for own in domains if int(own.sum()) >= FEWEST)]
        tests = [
            (
                float(ks_2samp(self.confidence[group].numpy(), confidence.numpy()).pvalue),
                mmd_test(self.projected[group].double(), projected),
            )
            for group in groups
        ]
        return max(tests, key=min)


def _mean(mask: Tensor) -> float:
    return float(mask.double().mean())


def _level(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return the confidence that as many samples (N,) reach as are correct (Garg et al. 2022)."""
    right = int(correct.sum())
    return confidence.sort(descending=True).values[right - 1] if right else confidence.new_tensor(math.inf)


def mmd_test(reference: Tensor, new: Tensor, permutations: int = PERMUTATIONS) -> float:
    """Return the p-value of a permutation test on the maximum mean discrepancy of samples (N, K) and (M, K).

    The kernel is Gaussian, with the median distance of the joint samples as its width (Gretton et al. 2012). The
    permutations are the same for every call.
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
    # The observed value counts as one of the permutations, so that the p-value is never 0.
    return _mean(discrepancy >= discrepancy[0] - 1e-12)  # up to rounding
