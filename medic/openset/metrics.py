"""Metrics of open set recognition, from a confidence, a closed-set prediction and a label per sample.

Confidence is large for known samples; the label of an unknown sample is −1. K and U are the sets of known and unknown
samples. Every metric is a fraction. Samples of equal confidence are one point of every curve, so the order of the
samples never matters.

A metric that needs no threshold takes the three columns, or a `Ranking` made from them once:

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
"""Confidences (N,), followed by columns of predictions and labels (N,), or a `Ranking` in place of the three."""


class HScore(NamedTuple):
    """The H-score 2·acc_k·acc_u / (acc_k + acc_u) at a threshold, with its two parts."""

    hscore: float
    acc_k: float
    acc_u: float

    @classmethod
    def of(cls, acc_k: float, acc_u: float) -> "HScore":
        """Return the H-score of its parts, 0 where both are 0."""
        total = acc_k + acc_u
        return cls(2 * acc_k * acc_u / total if total else 0.0, acc_k, acc_u)


class Curve(NamedTuple):
    """The points of the OSCR curve, both (points,) in float64, from (0, 0) to (1, Acc)."""

    fpr: Tensor
    ccr: Tensor


def check_shapes(**tensors: Tensor) -> None:
    """Refuse tensors that do not all have the shape (N,)."""
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) > 1 or len(shapes.pop()) != 1:
        described = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise MedicError(f"one value per sample is needed, shape (N,), not {described}")


def as_confidence(confidence: Values, **others: Tensor) -> Tensor:
    """Return `confidence` as a float64 tensor without NaN, of the shape (N,) of the `others`; infinity is allowed."""
    tensor = torch.as_tensor(confidence, dtype=torch.float64).detach()
    check_shapes(confidence=tensor, **others)
    if nan := int(tensor.isnan().sum()):
        raise MedicError(f"{nan} of {len(tensor)} confidences are NaN; look for NaN in the logits they come from")
    return tensor


def as_classes(name: str, values: Values, device: torch.device | None = None) -> Tensor:
    """Return integer classes as an int64 tensor; −1 is unknown."""
    tensor = torch.as_tensor(values, device=device)
    if tensor.is_floating_point() and tensor.numel():
        raise MedicError(f"{name} must be integers (a class, or {UNKNOWN} for unknown), not {tensor.dtype}")
    tensor = tensor.to(torch.int64)
    if tensor.numel() and (lowest := int(tensor.min())) < UNKNOWN:
        raise MedicError(f"{name} {lowest} is not a class; classes start at 0 and unknown is {UNKNOWN}")
    return tensor


def _as_labels(values: Values, device: torch.device, **others: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels (N,) of the shape of the `others`, and the mask (N,) of known samples, of which one must exist."""
    label = as_classes("label", values, device)
    check_shapes(**others, label=label)
    known = label >= 0
    if not bool(known.any()):
        raise MedicError(f"no known sample among {len(label)}: every label is {UNKNOWN} (unknown)")
    return label, known


@dataclass(frozen=True)
class Outcomes:
    """Checked predictions and labels (N,) of samples, with the masks (N,) of the known and of the correct ones."""

    prediction: Tensor
    label: Tensor
    known: Tensor
    correct: Tensor

    @classmethod
    def of(cls, prediction: Values, label: Values, device: torch.device | None = None) -> "Outcomes":
        """Check and convert predictions and labels (N,); at least one sample must be known."""
        prediction = as_classes("prediction", prediction, device)
        label, known = _as_labels(label, prediction.device, prediction=prediction)
        return cls(prediction, label, known, known & (prediction == label))

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The number of known and of unknown samples."""
        known = int(self.known.sum())
        return known, len(self.label) - known

    @property
    def acc(self) -> float:
        """The share of the known samples whose prediction is correct."""
        return int(self.correct.sum()) / self.sizes[0]

    def check_unknown(self) -> None:
        """Refuse samples that are all known."""
        if not self.sizes[1]:
            raise MedicError(
                f"no unknown sample among {len(self.label)}: no label is {UNKNOWN}; without one only acc is defined"
            )

    def rank(self, confidence: Values) -> "Ranking":
        """Rank the samples by their confidence (N,)."""
        confidence = as_confidence(confidence, prediction=self.prediction, label=self.label)
        confidence, order = confidence.sort(descending=True)
        ends = functional.pad(confidence[1:] != confidence[:-1], (0, 1), value=True).nonzero().squeeze(1)
        masks = torch.stack((self.known, self.correct, ~self.known))
        return Ranking(*functional.pad(masks[:, order].cumsum(dim=1)[:, ends], (1, 0)))

    def hscores(self, confidence: Tensor, thresholds: Sequence[float]) -> list[HScore]:
        """Return the H-score at each threshold of a checked confidence (N,)."""
        self.check_unknown()
        known, unknown = self.sizes
        accepted = confidence >= confidence.new_tensor(thresholds).unsqueeze(1)
        hit = torch.where(accepted, self.prediction, UNKNOWN) == self.label
        counts = ((hit & self.known).sum(dim=1).tolist(), (hit & ~self.known).sum(dim=1).tolist())
        return [HScore.of(correct / known, rejected / unknown) for correct, rejected in zip(*counts, strict=True)]


class Ranking(NamedTuple):
    """The counts of samples with at least the confidence of each point of the curves, as int64 (points,).

    The first point lies above every confidence (0 samples); then comes one per distinct confidence, descending.
    """

    known: Tensor
    correct: Tensor
    unknown: Tensor

    def acc(self) -> float:
        """Return the closed-set accuracy |{x ∈ K: ŷ = y}| / |K|, without rejection; unknown samples are left out."""
        return int(self.correct[-1]) / int(self.known[-1])

    def oscr(self) -> float:
        """Return the area under CCR over FPR, the open set classification rate (Dhamija et al. 2018), tie-aware.

        At a threshold τ, CCR = |{x ∈ K: ŷ = y, conf ≥ τ}| / |K| and FPR = |{x ∈ U: conf ≥ τ}| / |U|. The area is
        1/(|K||U|) Σ_{x ∈ K, ŷ = y} Σ_{u ∈ U} ([conf_x > conf_u] + ½ [conf_x = conf_u]), at most Acc and AUROC.
        """
        return self._area(self.correct)

    def oscr_curve(self) -> Curve:
        """Return the points (FPR, CCR) whose trapezoid area is `oscr`, one per distinct confidence after (0, 0)."""
        return Curve(self.unknown.double() / self.unknown[-1], self.correct.double() / self.known[-1])

    def auroc(self) -> float:
        """Return P(conf_K > conf_U) + ½ P(conf_K = conf_U) for a known and an unknown sample, whichever is positive."""
        return self._area(self.known)

    def aupr(self, *, positive: str = "unknown", interpolation: str = "trapezoid") -> float:
        """Return the area under precision over recall, with "unknown" (AUPR-out) or "known" (AUPR-in) as positives.

        "trapezoid" joins the points, starting at recall 0 and precision 1, as OpenOOD does; "step" is average
        precision, Σ_i (R_i − R_{i−1}) P_i.
        """
        check_choice("interpolation", interpolation, ("trapezoid", "step"))
        true, false = (count.double() for count in self._detected(positive))
        precision = functional.pad(true[1:] / (true + false)[1:], (1, 0), value=1.0)
        height = precision[1:] if interpolation == "step" else (precision[1:] + precision[:-1]) / 2
        return float((height * true.diff()).sum() / true[-1])

    def fpr_at_tpr(self, tpr: float = 0.95, *, positive: str = "unknown") -> float:
        """Return the false positive rate where the true positive rate first reaches `tpr`.

        With positive="unknown", as in OpenOOD: the share of K flagged where at least `tpr` of U is detected
        (conf ≤ τ). With "known": the share of U accepted where at least `tpr` of K is accepted (conf ≥ τ).
        """
        check_range("fpr_at_tpr", Limits(0, 1, above=True), tpr=tpr)
        true, false = self._detected(positive)
        return int(false[_first_at_least(true, tpr)]) / int(false[-1])

    def fpr95(self) -> float:
        """Return `fpr_at_tpr` at 0.95 with unknown samples as positives."""
        return self.fpr_at_tpr()

    def ccr_at_fpr(self, fpr: float = 0.1) -> float:
        """Return |{x ∈ K: ŷ = y, conf > τ}| / |K| with τ the ⌈fpr·|U|⌉-th largest confidence of U (OpenOOD).

        The inequality is strict, so the false positive rate stays below `fpr`.
        """
        check_range("ccr_at_fpr", Limits(0, 1, above=True), fpr=fpr)
        return int(self.correct[_first_at_least(self.unknown, fpr) - 1]) / int(self.known[-1])

    def _area(self, accepted: Tensor) -> float:
        """Return the trapezoid area under accepted / |K| over unknown / |U|, computed in integers and so exact."""
        twice = ((accepted[1:] + accepted[:-1]) * self.unknown.diff()).sum()
        return int(twice) / (2 * int(self.known[-1]) * int(self.unknown[-1]))

    def _detected(self, positive: str) -> tuple[Tensor, Tensor]:
        """Return true and false positives, counted from the most `positive` end of the ranking."""
        if check_choice("positive side", positive, ("unknown", "known")) == "known":
            return self.known, self.unknown
        return (self.unknown[-1] - self.unknown).flip(0), (self.known[-1] - self.known).flip(0)


def _first_at_least(counts: Tensor, share: float) -> int:
    # Division is correctly rounded, so 19 of 20 is at least 0.95; the product 0.95 · 20 need not be 19.
    return int((counts.double() / counts[-1] < share).sum())


def rank(confidence: Ranked, prediction: Column = None, label: Column = None, *, closed: bool = False) -> Ranking:
    """Check samples and rank them by confidence, once for any number of metrics; a `Ranking` is returned unchanged.

    At least one sample must be unknown, except with `closed`.
    """
    if isinstance(confidence, Ranking):
        return confidence
    if prediction is None or label is None:
        raise MedicError("every confidence needs a prediction and a label: pass confidence, prediction, label")
    confidence = torch.as_tensor(confidence)
    outcomes = Outcomes.of(prediction, label, confidence.device)
    ranking = outcomes.rank(confidence)
    if not closed:
        outcomes.check_unknown()
    return ranking


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class RankingMetric(Protocol[P, R_co]):
    """A metric of three columns (N,), or of the `Ranking` that they make."""

    def __call__(
        self, confidence: Ranked, prediction: Column = None, label: Column = None, *args: P.args, **options: P.kwargs
    ) -> R_co:
        """Return the metric."""


def of_columns(method: Callable[Concatenate[Ranking, P], R_co], closed: bool = False) -> RankingMetric[P, R_co]:
    """Return a method of `Ranking` as a function that also takes the columns of a ranking."""

    @wraps(method)
    def metric(
        confidence: Ranked, prediction: Column = None, label: Column = None, *args: P.args, **options: P.kwargs
    ) -> R_co:
        return method(rank(confidence, prediction, label, closed=closed), *args, **options)

    del metric.__wrapped__  # so that `help` shows the columns
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
"""The metrics that need no threshold, as functions of a `Ranking`; every run records them."""


def evaluate(confidence: Ranked, prediction: Column = None, label: Column = None) -> dict[str, float]:
    """Return every metric of `RANKING_METRICS` by name, from one sort; unknown is positive in `fpr95`."""
    ranking = rank(confidence, prediction, label)
    return {name: metric(ranking) for name, metric in RANKING_METRICS.items()}


def decide(confidence: Values, prediction: Values, threshold: float) -> Tensor:
    """Return the prediction (N,) of samples with conf ≥ threshold, and −1 (unknown) for the others."""
    if math.isnan(threshold):
        raise MedicError("the threshold is NaN; known means confidence >= threshold")
    prediction = as_classes("prediction", prediction, torch.as_tensor(confidence).device)
    return torch.where(as_confidence(confidence, prediction=prediction) >= threshold, prediction, UNKNOWN)


def hscore(
    confidence: Values, prediction: Values, label: Values, threshold: float, *, per_class: bool = False
) -> HScore:
    """Return the H-score where a sample is known if and only if conf ≥ threshold.

    acc_k = |{x ∈ K: ŷ = y, conf ≥ threshold}| / |K|, or with `per_class` the mean of that over the classes in
    K; acc_u = |{x ∈ U: conf < threshold}| / |U|; H = 2 acc_k acc_u / (acc_k + acc_u), and 0 where both are 0.
    """
    return hard_hscore(decide(confidence, prediction, threshold), label, per_class=per_class)


def hard_hscore(prediction: Values, label: Values, *, per_class: bool = False) -> HScore:
    """Return the H-score of hard decisions, prediction −1 = unknown: acc_k = P_K(ŷ = y), acc_u = P_U(ŷ = −1)."""
    outcomes = Outcomes.of(prediction, label)
    outcomes.check_unknown()
    rejected = int((outcomes.prediction[~outcomes.known] == UNKNOWN).sum())
    return HScore.of(_mean_over_classes(outcomes) if per_class else outcomes.acc, rejected / outcomes.sizes[1])


def _mean_over_classes(outcomes: Outcomes) -> float:
    counts = outcomes.label[outcomes.known].bincount()
    hits = outcomes.label[outcomes.correct].bincount(minlength=len(counts))
    return float((hits.double() / counts)[counts > 0].mean())


class KnownOdds(NamedTuple):
    """The one-vs-all log-odds d (K, C) of known samples, and the mask (K, C) of each sample's own class."""

    odds: Tensor
    own: Tensor

    @classmethod
    def of(cls, odds: Tensor, label: Tensor, known: Tensor) -> "KnownOdds":
        """Select the known samples of log-odds (N, C) with checked labels (N,) by a mask (N,)."""
        return cls(odds.detach()[known], functional.one_hot(label[known], odds.shape[1]).bool())


def _known_odds(ova: Values | KnownOdds, label: Column) -> KnownOdds:
    if isinstance(ova, KnownOdds):
        return ova
    if label is None:
        raise MedicError("the one-vs-all logits need a label per sample: pass ova, label")
    odds = ova_log_odds(ova)
    label, known = _as_labels(label, odds.device, ova=odds[:, 0])
    if (highest := int(label.max())) >= odds.shape[1]:
        raise MedicError(
            f"label {highest} has no one-vs-all classifier: there are {odds.shape[1]}, for classes from 0 on"
        )
    return KnownOdds.of(odds, label, known)


def conf_p(ova: Values | KnownOdds, label: Column = None) -> float:
    """Return the mean positive output of each sample's own classifier: mean_{x ∈ K} q_y(x).

    `ova` (N, 2, C) are one-vs-all logits, negative channel first; samples with label −1 are left out. The
    paper's confidence table lists it in percent beside `conf_n`: they are equal for a balanced classifier.
    """
    odds, own = _known_odds(ova, label)
    return float(odds[own].sigmoid().mean())


def conf_n(ova: Values | KnownOdds, label: Column = None, *, others: str = "mean") -> float:
    """Return the mean negative output of the other classes' classifiers: mean_{x ∈ K} mean_{j≠y} (1 − q_j(x)).

    With others="hardest" the inner mean is the minimum: the classifier j ≠ y with the largest error. `ova` and
    `label` are as in `conf_p`. The paper does not state which of the two its table lists.
    """
    check_choice("reading of conf_n", others, ("mean", "hardest"))
    odds, own = _known_odds(ova, label)
    if odds.shape[1] == 1:
        raise MedicError("conf_n needs at least two classes: with one class, no other classifier exists")
    negative = (-odds).sigmoid()
    if others == "mean":
        return float(negative[~own].mean())
    return float(negative.masked_fill(own, torch.inf).amin(dim=1).mean())


def balance(ova: Values | KnownOdds, label: Column = None) -> Tensor:
    """Return the imbalance of every one-vs-all classifier c: mean_{y=c} q_c + mean_{y≠c} q_c − 1, (C,) in float64.

    `ova` and `label` are as in `conf_p`. 0 is balanced, a negative value leans to "not c"; NaN marks a classifier
    without a sample on one side.
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
"""The metrics of a one-vs-all head, as functions of `KnownOdds`; every run with such a head records them."""
