"""Open set recognition metrics, computed from a confidence, a closed-set prediction and a label per sample.

Known samples should have large confidences. Unknown samples have the label −1. K and U are the sets of known and
unknown samples. Every metric is a fraction. Samples with equal confidence form one point of every curve, so the order
of the samples never matters.

A metric without a threshold takes these three columns, or a `Ranking` built from them once:

    ranking = rank(confidence, prediction, label)
    oscr(ranking), auroc(ranking)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, Union

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice
from medic.metrics import METRICS
from medic.openset.scores import Values, ova_log_odds
from medic.utils.parts import Limits, check_range

UNKNOWN = -1

Column: TypeAlias = Values | None
Ranked: TypeAlias = Union["Ranking", Values]
"""Confidences of shape (N,), followed by predictions and labels, or a `Ranking` that replaces all three."""


class HScore(NamedTuple):
    """The H-score 2·acc_k·acc_u / (acc_k + acc_u) at a threshold, with its two components."""

    hscore: float
    acc_k: float
    acc_u: float

    @classmethod
    def of(cls, acc_k: float, acc_u: float) -> "HScore":
        """Compute the H-score from its components. It is 0 if both are 0."""
        total = acc_k + acc_u
        return cls(2 * acc_k * acc_u / total if total else 0.0, acc_k, acc_u)


class Curve(NamedTuple):
    """The points of the OSCR curve from (0, 0) to (1, Acc), as two tensors of shape (points,) in float64."""

    fpr: Tensor
    ccr: Tensor


def check_shapes(**tensors: Tensor) -> None:
    """Raise an error unless all tensors have the same shape (N,)."""
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) > 1 or len(shapes.pop()) != 1:
        described = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise MedicError(f"expected one value per sample, shape (N,), got {described}")


def as_confidence(confidence: Values, **others: Tensor) -> Tensor:
    """Convert `confidence` to a float64 tensor of shape (N,). Raise an error for NaN; infinity is allowed.

    The `others` must have the same shape.
    """
    tensor = torch.as_tensor(confidence, dtype=torch.float64).detach()
    check_shapes(confidence=tensor, **others)
    if nan := int(tensor.isnan().sum()):
        raise MedicError(f"{nan} of {len(tensor)} confidences are NaN; check the logits for NaN")
    return tensor


def as_classes(name: str, values: Values, device: torch.device | None = None) -> Tensor:
    """Convert integer classes to an int64 tensor. −1 means unknown."""
    tensor = torch.as_tensor(values, device=device)
    if tensor.is_floating_point() and tensor.numel():
        raise MedicError(f"{name} must be integers (a class, or {UNKNOWN} for unknown), got {tensor.dtype}")
    tensor = tensor.to(torch.int64)
    if tensor.numel() and (lowest := int(tensor.min())) < UNKNOWN:
        raise MedicError(f"{name} {lowest} is not a class: use 0 or above, or {UNKNOWN} for unknown")
    return tensor


def _as_labels(values: Values, device: torch.device, **others: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels and the mask of known samples, both of shape (N,).

    The `others` must have the same shape, and at least one sample must be known.
    """
    label = as_classes("label", values, device)
    check_shapes(**others, label=label)
    known = label >= 0
    if not bool(known.any()):
        raise MedicError(f"no known samples among {len(label)}: every label is {UNKNOWN} (unknown)")
    return label, known


@dataclass(frozen=True)
class Outcomes:
    """Validated predictions and labels, with masks of known and correct samples, all of shape (N,)."""

    prediction: Tensor
    label: Tensor
    known: Tensor
    correct: Tensor

    @classmethod
    def of(cls, prediction: Values, label: Values, device: torch.device | None = None) -> "Outcomes":
        """Validate and convert predictions and labels. At least one sample must be known."""
        prediction = as_classes("prediction", prediction, device)
        label, known = _as_labels(label, prediction.device, prediction=prediction)
        return cls(prediction, label, known, known & (prediction == label))

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The numbers of known and unknown samples."""
        known = int(self.known.sum())
        return known, len(self.label) - known

    @property
    def acc(self) -> float:
        """The fraction of known samples with a correct prediction."""
        return int(self.correct.sum()) / self.sizes[0]

    def check_unknown(self) -> None:
        """Raise an error unless at least one sample is unknown."""
        if not self.sizes[1]:
            raise MedicError(
                f"no unknown samples among {len(self.label)}: without a label of {UNKNOWN}, only acc is defined"
            )

    def rank(self, confidence: Values) -> "Ranking":
        """Rank the samples by confidence."""
        confidence = as_confidence(confidence, prediction=self.prediction, label=self.label)
        confidence, order = confidence.sort(descending=True)
        ends = functional.pad(confidence[1:] != confidence[:-1], (0, 1), value=True).nonzero().squeeze(1)
        masks = torch.stack((self.known, self.correct, ~self.known))
        return Ranking(*functional.pad(masks[:, order].cumsum(dim=1)[:, ends], (1, 0)))

    def hscores(self, confidence: Tensor, thresholds: Sequence[float]) -> list[HScore]:
        """Return the H-score at each threshold, for validated confidences of shape (N,)."""
        self.check_unknown()
        known, unknown = self.sizes
        accepted = confidence >= confidence.new_tensor(thresholds).unsqueeze(1)
        hit = torch.where(accepted, self.prediction, UNKNOWN) == self.label
        counts = ((hit & self.known).sum(dim=1).tolist(), (hit & ~self.known).sum(dim=1).tolist())
        return [HScore.of(correct / known, rejected / unknown) for correct, rejected in zip(*counts, strict=True)]


class Ranking(NamedTuple):
    """Cumulative sample counts at each point of the curves, as int64 tensors of shape (points,).

    Each count covers the samples with at least the confidence of the point. The first point lies above every confidence
    (0 samples). It is followed by one point per distinct confidence, in descending order.
    """

    known: Tensor
    correct: Tensor
    unknown: Tensor

    def acc(self) -> float:
        """Return the closed-set accuracy |{x ∈ K: ŷ = y}| / |K|, without rejection. Unknown samples are ignored."""
        return int(self.correct[-1]) / int(self.known[-1])

    def oscr(self) -> float:
        """Return the open set classification rate: the area under CCR over FPR (Dhamija et al. 2018), tie-aware.

        At a threshold τ, CCR = |{x ∈ K: ŷ = y, conf ≥ τ}| / |K| and FPR = |{x ∈ U: conf ≥ τ}| / |U|. The area is
        1/(|K||U|) Σ_{x ∈ K, ŷ = y} Σ_{u ∈ U} ([conf_x > conf_u] + ½ [conf_x = conf_u]), at most Acc and AUROC.
        """
        return self._area(self.correct)

    def oscr_curve(self) -> Curve:
        """Return the points (FPR, CCR): (0, 0), then one per distinct confidence. Their trapezoidal area is `oscr`."""
        return Curve(self.unknown.double() / self.unknown[-1], self.correct.double() / self.known[-1])

    def auroc(self) -> float:
        """Return P(conf_K > conf_U) + ½ P(conf_K = conf_U) for a random known and a random unknown sample."""
        return self._area(self.known)

    def aupr(self, *, positive: str = "unknown", interpolation: str = "trapezoid") -> float:
        """Return the area under precision over recall, with "unknown" (AUPR-out) or "known" (AUPR-in) as positives.

        `interpolation` "trapezoid" joins the points, starting at recall 0 and precision 1, as in OpenOOD. "step" is
        average precision, Σ_i (R_i − R_{i−1}) P_i.
        """
        check_choice("interpolation", interpolation, ("trapezoid", "step"))
        true, false = (count.double() for count in self._detected(positive))
        precision = functional.pad(true[1:] / (true + false)[1:], (1, 0), value=1.0)
        height = precision[1:] if interpolation == "step" else (precision[1:] + precision[:-1]) / 2
        return float((height * true.diff()).sum() / true[-1])

    def fpr_at_tpr(self, tpr: float = 0.95, *, positive: str = "unknown") -> float:
        """Return the false positive rate where the true positive rate first reaches `tpr`.

        With positive="unknown", as in OpenOOD: the fraction of K rejected when at least `tpr` of U is rejected
        (conf ≤ τ). With "known": the fraction of U accepted when at least `tpr` of K is accepted (conf ≥ τ).
        """
        check_range("fpr_at_tpr", Limits(0, 1, above=True), tpr=tpr)
        true, false = self._detected(positive)
        return int(false[_first_at_least(true, tpr)]) / int(false[-1])

    def fpr95(self) -> float:
        """Return `fpr_at_tpr` at 0.95 with unknown samples as positives."""
        return self.fpr_at_tpr()

    def ccr_at_fpr(self, fpr: float = 0.1) -> float:
        """Return |{x ∈ K: ŷ = y, conf > τ}| / |K|, where τ is the ⌈fpr·|U|⌉-th largest confidence of U (OpenOOD).

        The inequality is strict, so the false positive rate stays below `fpr`.
        """
        check_range("ccr_at_fpr", Limits(0, 1, above=True), fpr=fpr)
        return int(self.correct[_first_at_least(self.unknown, fpr) - 1]) / int(self.known[-1])

    def _area(self, accepted: Tensor) -> float:
        """Return the trapezoidal area under accepted / |K| over unknown / |U|. Integer counts make it exact."""
        twice = ((accepted[1:] + accepted[:-1]) * self.unknown.diff()).sum()
        return int(twice) / (2 * int(self.known[-1]) * int(self.unknown[-1]))

    def _detected(self, positive: str) -> tuple[Tensor, Tensor]:
        """Return cumulative true and false positives, starting at the `positive` end of the ranking."""
        if check_choice("positive side", positive, ("unknown", "known")) == "known":
            return self.known, self.unknown
        return (self.unknown[-1] - self.unknown).flip(0), (self.known[-1] - self.known).flip(0)


def _first_at_least(counts: Tensor, share: float) -> int:
    # Division is correctly rounded, so 19 of 20 is at least 0.95. The product 0.95 · 20 may differ from 19.
    return int((counts.double() / counts[-1] < share).sum())


def rank(confidence: Ranked, prediction: Column = None, label: Column = None, *, closed: bool = False) -> Ranking:
    """Validate samples and rank them by confidence, once for any number of metrics.

    A `Ranking` is returned unchanged. At least one sample must be unknown, unless `closed` is set.
    """
    if isinstance(confidence, Ranking):
        return confidence
    if prediction is None or label is None:
        raise MedicError("every confidence requires a prediction and a label: pass confidence, prediction, label")
    confidence = torch.as_tensor(confidence)
    outcomes = Outcomes.of(prediction, label, confidence.device)
    ranking = outcomes.rank(confidence)
    if not closed:
        outcomes.check_unknown()
    return ranking


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class RankingMetric(Protocol[P, R_co]):
    """A metric that takes confidences, predictions and labels, each of shape (N,), or their `Ranking`."""

    def __call__(
        self, confidence: Ranked, prediction: Column = None, label: Column = None, *args: P.args, **options: P.kwargs
    ) -> R_co:
        """Return the metric."""


def of_columns(method: Callable[Concatenate[Ranking, P], R_co], closed: bool = False) -> RankingMetric[P, R_co]:
    """Turn a method of `Ranking` into a function that also accepts confidences, predictions and labels."""

    @wraps(method)
    def metric(
        confidence: Ranked, prediction: Column = None, label: Column = None, *args: P.args, **options: P.kwargs
    ) -> R_co:
        return method(rank(confidence, prediction, label, closed=closed), *args, **options)

    del metric.__wrapped__  # so that `help` shows the signature with three columns
    return metric


acc = of_columns(Ranking.acc, closed=True)
oscr = of_columns(Ranking.oscr)
oscr_curve = of_columns(Ranking.oscr_curve)
auroc = of_columns(Ranking.auroc)
aupr = of_columns(Ranking.aupr)
fpr_at_tpr = of_columns(Ranking.fpr_at_tpr)
fpr95 = of_columns(Ranking.fpr95)
ccr_at_fpr = of_columns(Ranking.ccr_at_fpr)

RANKING_METRICS = {key: metric.of_ranking for key, metric in METRICS.items() if metric.of_ranking is not None}
"""Metrics without a threshold, as functions of a `Ranking`. Every run records them."""


def evaluate(confidence: Ranked, prediction: Column = None, label: Column = None) -> dict[str, float]:
    """Compute every metric in `RANKING_METRICS`, keyed by name. In `fpr95`, unknown samples are the positives."""
    ranking = rank(confidence, prediction, label)
    return {name: metric(ranking) for name, metric in RANKING_METRICS.items()}


def decide(confidence: Values, prediction: Values, threshold: float) -> Tensor:
    """Return the prediction for samples with conf ≥ threshold and −1 (unknown) for the rest, of shape (N,)."""
    if math.isnan(threshold):
        raise MedicError("the threshold must be a number, got NaN")
    prediction = as_classes("prediction", prediction, torch.as_tensor(confidence).device)
    return torch.where(as_confidence(confidence, prediction=prediction) >= threshold, prediction, UNKNOWN)


def hscore(
    confidence: Values, prediction: Values, label: Values, threshold: float, *, per_class: bool = False
) -> HScore:
    """Return the H-score when samples are accepted as known if and only if conf ≥ threshold.

    acc_k = |{x ∈ K: ŷ = y, conf ≥ threshold}| / |K|, acc_u = |{x ∈ U: conf < threshold}| / |U| and
    H = 2 acc_k acc_u / (acc_k + acc_u), or 0 if both are 0. With `per_class`, acc_k is averaged over the classes in K.
    """
    return hard_hscore(decide(confidence, prediction, threshold), label, per_class=per_class)


def hard_hscore(prediction: Values, label: Values, *, per_class: bool = False) -> HScore:
    """Return the H-score of hard decisions: acc_k = P_K(ŷ = y), acc_u = P_U(ŷ = −1). Here, ŷ = −1 means "unknown"."""
    outcomes = Outcomes.of(prediction, label)
    outcomes.check_unknown()
    rejected = int((outcomes.prediction[~outcomes.known] == UNKNOWN).sum())
    return HScore.of(_mean_over_classes(outcomes) if per_class else outcomes.acc, rejected / outcomes.sizes[1])


def _mean_over_classes(outcomes: Outcomes) -> float:
    counts = outcomes.label[outcomes.known].bincount()
    hits = outcomes.label[outcomes.correct].bincount(minlength=len(counts))
    return float((hits.double() / counts)[counts > 0].mean())


class KnownOdds(NamedTuple):
    """One-vs-all log-odds of known samples, and the mask of each sample's own class, both of shape (K, C)."""

    odds: Tensor
    own: Tensor

    @classmethod
    def of(cls, odds: Tensor, label: Tensor, known: Tensor) -> "KnownOdds":
        """Select the known samples from log-odds of shape (N, C), validated labels and a mask of shape (N,)."""
        return cls(odds.detach()[known], functional.one_hot(label[known], odds.shape[1]).bool())


def _known_odds(ova: Values | KnownOdds, label: Column) -> KnownOdds:
    if isinstance(ova, KnownOdds):
        return ova
    if label is None:
        raise MedicError("one-vs-all logits require a label per sample: pass ova, label")
    odds = ova_log_odds(ova)
    label, known = _as_labels(label, odds.device, ova=odds[:, 0])
    if (highest := int(label.max())) >= odds.shape[1]:
        raise MedicError(
            f"label {highest} is too large: labels must be below {odds.shape[1]}, the number of one-vs-all classifiers"
        )
    return KnownOdds.of(odds, label, known)


def conf_p(ova: Values | KnownOdds, label: Column = None) -> float:
    """Return the mean positive output of each sample's own classifier: mean_{x ∈ K} q_y(x).

    `ova` contains one-vs-all logits of shape (N, 2, C), negative channel first. Samples with label −1 are ignored. The
    paper's confidence table lists `conf_p` and `conf_n` in percent. For a balanced classifier, both are equal.
    """
    odds, own = _known_odds(ova, label)
    return float(odds[own].sigmoid().mean())


def conf_n(ova: Values | KnownOdds, label: Column = None, *, others: str = "mean") -> float:
    """Return the mean negative output of the other classes' classifiers: mean_{x ∈ K} mean_{j≠y} (1 − q_j(x)).

    With others="hardest", the minimum replaces the inner mean: only the classifier j ≠ y with the largest error counts.
    `ova` and `label` are as in `conf_p`. The paper does not state which variant its table lists.
    """
    check_choice("conf_n variant", others, ("mean", "hardest"))
    odds, own = _known_odds(ova, label)
    if odds.shape[1] == 1:
        raise MedicError("conf_n requires at least two classes, got one")
    negative = (-odds).sigmoid()
    if others == "mean":
        return float(negative[~own].mean())
    return float(negative.masked_fill(own, torch.inf).amin(dim=1).mean())


def balance(ova: Values | KnownOdds, label: Column = None) -> Tensor:
    """Return the imbalance of every one-vs-all classifier c: mean_{y=c} q_c + mean_{y≠c} q_c − 1, of shape (C,).

    `ova` and `label` are as in `conf_p`. A value of 0 means balanced, and a negative value means a bias towards "not
    c". The value is NaN for a classifier without positive or without negative samples.
    """
    odds, own = _known_odds(ova, label)
    q = odds.sigmoid()
    positive, negative = (q.where(mask, 0).sum(dim=0) / mask.sum(dim=0) for mask in (own, ~own))
    return positive + negative - 1


OVA_METRICS: dict[str, Callable[[KnownOdds], float]] = {
    "conf_p": conf_p,
    "conf_n": conf_n,
    "balance": lambda known: float(balance(known).nanmean()),
}
"""Metrics for a one-vs-all head, as functions of `KnownOdds`. Every run with such a head records them."""
