"""Scores that are fitted on the outputs for the training set before they can be used.

Like the scores in `scores.py` they are computed in float64, unbounded and large for a known class; all work is done
on the device of the outputs. A fitted score is nothing but tensors, so that it can be saved and read back.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice
from medic.openset.scores import Values, close_set_logits
from medic.outputs import Output

# The weights of ‖v − μ‖ and of 1 − cos(v, μ) in the distance of logits v to a class mean μ.
DISTANCES: dict[str, tuple[float, float]] = {"euclidean": (1.0, 0.0), "cosine": (0.0, 1.0), "eucos": (1 / 200, 1.0)}

# Where the likelihood of a Weibull law grows with its shape for ever (equal distances), the shape stops here: at the
# default shift it is a step 1e-6 wide, and its power of a ratio near 1 still has six digits.
MAX_SHAPE = 1e10

# What may be held at once in float64, in numbers: 64 MiB.
ELEMENTS = 2**23


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """A score that is fitted on the training set. It is immutable and all of its fields are tensors."""

    @classmethod
    @abstractmethod
    def fit(cls, output: Output | Tensor, label: Values) -> Self:
        """The score fitted on the outputs for N training samples with labels (N,) in 0..C−1."""

    @abstractmethod
    def __call__(self, output: Output | Tensor) -> Tensor:
        """The confidence (N,) of every sample of `output`, in float64."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that was fitted, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The score whose `tensors` these are; its values are the same to the bit."""
        names = {field.name for field in dataclasses.fields(cls)}
        if wrong := names ^ tensors.keys():
            raise MedicError(
                f"{cls.__name__} is made of the tensors {', '.join(sorted(names))}; "
                f"missing or not among them: {', '.join(sorted(wrong))}"
            )
        # A tensor read from a file may lie at any address, and BLAS may round differently where it is not aligned.
        return cls(**{name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()})

    def to(self, device: torch.device | str) -> Self:
        """The same on `device`. A call does it too; before many calls it is cheaper to do it once."""
        return dataclasses.replace(self, **{name: tensor.to(device) for name, tensor in self.tensors.items()})


class Recalibrated(NamedTuple):
    """The logits v̂ (N, C) of OpenMax and the logit of "unknown" (N,), in float64."""

    logits: Tensor
    unknown: Tensor


@dataclass(frozen=True, eq=False)
class OpenMax(Fitted):
    """OpenMax (Bendale and Boult 2016): logits far from the mean of their class lose to an unknown class.

    Of every class c, `means` (C, C) are the mean logits μ_c, and a Weibull law with `shape` (C,) and `scale` (C,)
    holds for d + `shift` − `offset`, d the distance of logits to μ_c. `alpha` is how many of the highest classes are
    recalibrated, and `distance` (2,) the weights of the euclidean and the cosine distance.
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
        output: Output | Tensor,
        label: Values,
        *,
        tail: int = 20,
        alpha: int = 3,
        shift: float = 10000.0,
        distance: str = "euclidean",
    ) -> Self:
        """Fit every class on its correctly classified samples, or where there is none on all of its samples.

        The Weibull law is that of the `tail` largest distances d to μ_c (of all, where there are fewer), moved by
        `shift` minus the smallest of them. `alpha` is at most C. `distance` is "euclidean" (OpenOOD), "cosine", or
        "eucos" (the original's), which is euclidean / 200 + cosine.
        """
        _check_count("tail", tail)
        _check_count("alpha", alpha)
        weights = DISTANCES[check_choice("distance", distance, DISTANCES)]
        logits, label = _training(output, label, every_class=True)
        metric = logits.new_tensor(weights)
        correct = logits.argmax(dim=1) == label
        means, laws = [], []
        for c in range(logits.shape[1]):
            own = label == c
            kept = own & correct
            values = logits[kept if bool(kept.any()) else own]
            mean = values.mean(dim=0, keepdim=True)
            largest = _distance(values, mean, metric).squeeze(1).topk(min(tail, len(values))).values
            means.append(mean)
            laws.append((*fit_weibull(largest, shift), float(largest.min())))
        shape, scale, offset = (logits.new_tensor(numbers) for numbers in zip(*laws, strict=True))
        return cls(
            means=torch.cat(means),
            shape=shape,
            scale=scale,
            offset=offset,
            shift=logits.new_tensor(shift),
            alpha=torch.tensor(min(alpha, logits.shape[1]), device=logits.device),
            distance=metric,
        )

    def recalibrate(self, output: Output | Tensor) -> Recalibrated:
        """The logits v̂_c = v_c (1 − ω_c w_c) and the unknown logit Σ_c v_c ω_c w_c.

        w_c is the Weibull probability of a distance at most that of v to μ_c, and ω_c = (A + 1 − r) / A for the
        class of rank r = 1..A by logit and 0 for the others. As in the original, a negative logit is raised by it.
        """
        logits = _logits(output, len(self.means))
        mine = self.to(logits.device)
        rank = torch.arange(1, logits.shape[1] + 1, dtype=torch.float64, device=logits.device)
        by_rank = ((mine.alpha + 1 - rank) / mine.alpha).clamp(min=0)
        order = logits.argsort(dim=1, descending=True, stable=True)
        taken = torch.zeros_like(logits).scatter(1, order, by_rank.expand_as(logits)) * mine._outlier(logits)
        return Recalibrated(logits * (1 - taken), (logits * taken).sum(dim=1))

    def _outlier(self, logits: Tensor) -> Tensor:
        """w_c (N, C) = 1 − exp(−((d_c + shift − offset_c) / scale_c)^shape_c), and 0 where the base is not positive."""
        distance = _distance(logits, self.means, self.distance)
        # The ratio is 1 + excess: at a shape of thousands its digits below 1 decide.
        excess = ((distance - self.offset) + (self.shift - self.scale)) / self.scale
        return -torch.expm1(-(self.shape * excess.clamp(min=-1).log1p()).exp())

    def __call__(self, output: Output | Tensor) -> Tensor:
        """max_c v̂_c − v̂_unknown (N,): at least 0 if and only if unknown is not the largest of the C + 1 logits."""
        logits, unknown = self.recalibrate(output)
        return logits.amax(dim=1) - unknown


@dataclass(frozen=True, eq=False)
class Nearest(Fitted):
    """The distance to the `k`-th nearest training sample (Sun et al. 2022), of features of length 1.

    `features` (N, F) are those of the training set as they came, in their own type: in float64 they would take
    twice the space of float32 and say the same.
    """

    features: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: Output | Tensor, label: Values, *, k: int = 50) -> Self:
        """Keep the features of the training set; `k` is at most N. The labels are checked and not used."""
        _check_count("k", k)
        _training(output, label)
        features = _features(output)
        return cls(
            features.clone(memory_format=torch.contiguous_format),
            torch.tensor(min(k, len(features)), device=features.device),
        )

    def __call__(self, output: Output | Tensor) -> Tensor:
        """−‖f/‖f‖ − t/‖t‖‖ (N,), t the k-th nearest of the training features; from −2 to 0."""
        features = _features(output, self.features.shape[1])
        mine, k = self.to(features.device), int(self.k)
        step = _rows(features.shape[1])
        rows = _rows(max(features.shape[1], min(step, len(self.features)) + 2 * k))
        parts = [mine._distance(_unit(part), k, step) for part in features.split(rows)]
        return -torch.cat(parts)

    def _distance(self, features: Tensor, k: int, step: int) -> Tensor:
        """The distance (N,) of features of length 1 to the k-th nearest, from `step` training samples at a time."""
        near = features.new_empty(len(features), 0)
        index = torch.empty_like(near, dtype=torch.int64)
        for start in range(0, len(self.features), step):
            bank = _unit(self.features[start : start + step])
            # ‖f − t‖² = ‖f‖² − 2 (f·t − ‖t‖²/2)
            value, place = (features @ bank.T - bank.square().sum(dim=1) / 2).topk(min(k, len(bank)))
            near, index = torch.cat([near, value], dim=1), torch.cat([index, place + start], dim=1)
            near, chosen = near.topk(min(k, near.shape[1]))
            index = index.gather(1, chosen)
        # The product finds the neighbour; the distance itself is that of the two, without the product's cancellation.
        distance: Tensor = torch.linalg.vector_norm(features - _unit(self.features[index[:, -1]]), dim=1)
        return distance


@dataclass(frozen=True, eq=False)
class Mahalanobis(Fitted):
    """The Mahalanobis distance of the features to the nearest class mean (Lee et al. 2018).

    `means` (C, F) are those of the classes, and `factor` (F, F) is the lower Cholesky factor of the covariance
    Σ = 1/N Σ_i (f_i − μ_{y_i}) (f_i − μ_{y_i})ᵀ + ridge · tr/F · I that all classes share, tr the trace of the sum.
    """

    means: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, output: Output | Tensor, label: Values, *, ridge: float = 1e-6) -> Self:
        """Fit on all samples. `ridge` times the mean variance of a feature is added to the diagonal of Σ.

        Σ is then regular with more features than samples too; without it (`ridge` = 0) a singular Σ is refused.
        """
        if not 0 <= ridge < math.inf:
            raise MedicError(f"ridge must be a finite number of at least 0, not {ridge}")
        logits, label = _training(output, label, every_class=True)
        features = _features(output)
        width, classes = features.shape[1], logits.shape[1]
        pairs = list(zip(features.split(_rows(width)), label.split(_rows(width)), strict=True))
        # A product with indicators, since scattered sums are not reproducible on a GPU.
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
        # Rounding lets a singular matrix pass: then a pivot is nothing but the rounding of its diagonal element.
        floor = width * torch.finfo(torch.float64).eps * covariance.diagonal()
        if bool(failed) or bool((factor.diagonal().square() <= floor).any()):
            raise MedicError(
                f"the covariance of {width} features of {len(features)} samples is singular with ridge {ridge}; "
                "fit on more samples per class" + (", or with a larger ridge" if bool(covariance.any()) else "")
            )
        return cls(means, factor.contiguous())

    def __call__(self, output: Output | Tensor) -> Tensor:
        """−min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c) (N,)."""
        features = _features(output, self.means.shape[1])
        mine = self.to(features.device)
        means = mine._whiten(mine.means)
        parts = [_euclidean(mine._whiten(part.double()), means) for part in features.split(_rows(features.shape[1]))]
        return -torch.cat([part.amin(dim=1) for part in parts]).square()

    def _whiten(self, features: Tensor) -> Tensor:
        """L⁻¹ f (N, F) with Σ = L Lᵀ: the euclidean distance of what comes out is the Mahalanobis distance."""
        white: Tensor = torch.linalg.solve_triangular(self.factor, features.T, upper=False)
        return white.T


def fit_weibull(distances: Tensor, shift: float) -> tuple[float, float]:
    """Shape k and scale λ of the Weibull law of s = d − min d + `shift` by maximum likelihood, d (n,) the distances.

    k is the root of Σ s^k ln s / Σ s^k − 1/k − mean ln s, which grows with k, and λ = (mean s^k)^(1/k). k is at most
    `MAX_SHAPE`, which is what it is for equal distances.
    """
    if not 0 < shift < math.inf:
        raise MedicError(f"shift must be a finite number above 0, not {shift}")
    tail = torch.as_tensor(distances, dtype=torch.float64, device="cpu").detach()
    if tail.dim() != 1 or not len(tail) or not bool(tail.isfinite().all()):
        raise MedicError(
            f"a Weibull law is fitted to finite distances of shape (n,), n > 0, not to {tuple(tail.shape)}"
            + (" with NaN or infinity" if tail.numel() else "")
        )
    moved = tail - tail.min() + shift
    top = moved.max()
    # ln(s / max s), to all digits also where the shift hides the distances.
    log = torch.where(moved < top / 2, moved.log() - top.log(), ((tail - tail.max()) / top).log1p())
    mean = float(log.mean())
    # At 1 / (−mean) the function is Σ s^k ln(s / max s) / Σ s^k, which is not positive: no root lies below it.
    shape = low = 1 / max(-mean, 1 / MAX_SHAPE)
    high, step = MAX_SHAPE, math.inf
    while abs(step) > 1e-13:
        weight = (shape * log).softmax(dim=0)
        centre = weight @ log
        value = float(centre) - mean - 1 / shape
        slope = float(weight @ (log - centre).square()) + 1 / shape**2
        low, high = (shape, high) if value < 0 else (low, shape)
        # Newton on ln k, or bisection where it leaves the bracket or closes in too slowly.
        last, step = step, -value / (shape * slope)
        if not math.log(low / shape) <= step <= math.log(high / shape) or abs(step) > abs(last) / 2:
            step = math.log(low / shape) / 2 + math.log(high / shape) / 2
        shape *= math.exp(step)
    return shape, float(top) * math.exp(float((shape * log).exp().mean().log()) / shape)


def _distance(logits: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """The weighted euclidean and cosine distance (N, C) of logits (N, F) to means (C, F)."""
    return weights[0] * _euclidean(logits, means) + weights[1] * (1 - _unit(logits) @ _unit(means).T)


def _euclidean(values: Tensor, centres: Tensor) -> Tensor:
    """The distances (N, C) by differences: a product would cancel."""
    return torch.cdist(values, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _unit(values: Tensor) -> Tensor:
    """Every row at length 1 in float64; a row of zeros stays one."""
    return functional.normalize(values.double(), dim=1, eps=torch.finfo(torch.float64).tiny)


def _rows(width: int) -> int:
    """How many rows of `width` numbers are handled at once."""
    return max(1, ELEMENTS // width)


def _check_count(name: str, value: int) -> None:
    if value != int(value) or value < 1:
        raise MedicError(f"{name} must be a whole number of at least 1, not {value}")


def _check_finite(name: str, values: Tensor) -> Tensor:
    # NaN is passed on by both extremes, and neither makes a copy of the values.
    if len(values) and (bad := int((~(values.amin(dim=1).isfinite() & values.amax(dim=1).isfinite())).sum())):
        raise MedicError(
            f"the {name} of {bad} of {len(values)} samples have NaN or infinity; look for it in the model or its inputs"
        )
    return values


def _logits(output: Output | Tensor, classes: int | None = None) -> Tensor:
    """The logits (N, C) in float64, without a graph, finite and of as many classes as the score was fitted on."""
    logits = close_set_logits(Output.of(output)).detach()
    if classes is not None and logits.shape[1] != classes:
        raise MedicError(
            f"the logits are of {logits.shape[1]} classes and the score was fitted on {classes}; fit it on this model"
        )
    return _check_finite("logits", logits)


def _features(output: Output | Tensor, width: int | None = None) -> Tensor:
    """The features (N, F) as they came, without a graph, finite and as many as the score was fitted on."""
    output = Output.of(output)
    if output.features is None:
        raise MedicError(
            "these outputs have no features, which this score needs: return Output(logits, features=features), "
            "or score by cls, max-logit, energy"
        )
    features = torch.as_tensor(output.features).detach()
    if features.dim() != 2 or features.shape[1] == 0 or len(features) != len(output.logits):
        raise MedicError(
            f"features must have shape (samples, features), one row for each of {len(output.logits)} rows of logits, "
            f"not {tuple(features.shape)}"
        )
    if width is not None and features.shape[1] != width:
        raise MedicError(
            f"there are {features.shape[1]} features and the score was fitted on {width}; fit it on this model"
        )
    return _check_finite("features", features)


def _training(output: Output | Tensor, label: Values, *, every_class: bool = False) -> tuple[Tensor, Tensor]:
    """The logits (N, C) and labels (N,) to fit on; with `every_class`, none may be without a sample."""
    logits = _logits(output)
    label = torch.as_tensor(label, device=logits.device)
    if not len(logits):
        raise MedicError("no samples to fit the score on; give it the outputs for the training set")
    if label.shape != logits.shape[:1]:
        raise MedicError(
            f"one label per sample is needed, shape ({len(logits)},) for logits {tuple(logits.shape)}, "
            f"not {tuple(label.shape)}"
        )
    if label.is_floating_point():
        raise MedicError(f"labels must be integers, not {label.dtype}")
    label, classes = label.to(torch.int64), logits.shape[1]
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
