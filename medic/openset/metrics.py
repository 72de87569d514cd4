"""Metrics of open set recognition, from a confidence, a close-set prediction and a label per sample.

Confidence is large for known samples; the label of an unknown sample is −1. K and U are the known and the
unknown samples. Every metric is a fraction. Samples of equal confidence are one point of every curve, so the order
in which samples arrive never matters.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError, check_choice
from medic.openset.scores import Values, ova_log_odds

UNKNOWN = -1


class HScore(NamedTuple):
    """The H-score 2·acc_k·acc_u / (acc_k + acc_u) at a threshold, with its two parts."""

    hscore: float
    acc_k: float
    acc_u: float


class Curve(NamedTuple):
    """The points of the OSCR curve, both (points,) in float64, from (0, 0) to (1, Acc)."""

    fpr: Tensor
    ccr: Tensor


def as_confidence(confidence: Values) -> Tensor:
    """`confidence` as a float64 tensor (N,) without NaN; infinities are values like any other."""
    tensor = torch.as_tensor(confidence, dtype=torch.float64).detach()
    _check_shapes(confidence=tensor)
    if nan := int(tensor.isnan().sum()):
        raise MedicError(f"{nan} of {len(tensor)} confidences are NaN; look for NaN in the logits they come from")
    return tensor


def check_share(name: str, value: float) -> float:
    """Return `value` if it is a share in (0, 1]."""
    if not 0 < value <= 1:
        raise MedicError(f"{name} must be in (0, 1], not {value}")
    return value


def _check_shapes(**tensors: Tensor) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) > 1 or len(shapes.pop()) != 1:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise MedicError(f"one value per sample is needed, shape (N,), not {given}")


def _classes(name: str, values: Values, device: torch.device | None = None) -> Tensor:
    tensor = torch.as_tensor(values, device=device)
    if tensor.is_floating_point() and tensor.numel():
        raise MedicError(f"{name} must be integers (a class, or {UNKNOWN} for unknown), not {tensor.dtype}")
    tensor = tensor.to(torch.int64)
    if tensor.numel() and (lowest := int(tensor.min())) < UNKNOWN:
        raise MedicError(f"{name} {lowest} is not a class; classes start at 0 and unknown is {UNKNOWN}")
    return tensor


def _check_present(label: Tensor, *, unknown: bool) -> None:
    if not bool((label >= 0).any()):
        raise MedicError(f"no known sample among {len(label)}: every label is {UNKNOWN} (unknown)")
    if unknown and not bool((label == UNKNOWN).any()):
        raise MedicError(
            f"no unknown sample among {len(label)}: no label is {UNKNOWN}; without one only acc is defined"
        )


def _triple(confidence: Values, prediction: Values, label: Values, *, unknown: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Check and convert what every metric takes; with `unknown`, samples of both sides must be present."""
    confidence = as_confidence(confidence)
    prediction = _classes("prediction", prediction, confidence.device)
    label = _classes("label", label, confidence.device)
    _check_shapes(confidence=confidence, prediction=prediction, label=label)
    _check_present(label, unknown=unknown)
    return confidence, prediction, label


class _Ranking(NamedTuple):
    """How many samples have at least the confidence of each point of the curves, as int64 counts.

    The first point lies above every confidence (0 samples); then comes one per distinct confidence, descending.
    """

    known: Tensor
    correct: Tensor
    unknown: Tensor

    def area(self, accepted: Tensor) -> float:
        """The trapezoid area under accepted / |K| over unknown / |U|, in integers and therefore exact."""
        twice = ((accepted[1:] + accepted[:-1]) * self.unknown.diff()).sum()
        return int(twice) / (2 * int(self.known[-1]) * int(self.unknown[-1]))

    def detected(self, positive: str) -> tuple[Tensor, Tensor]:
        """True and false positives, walking from the most `positive` end of the ranking."""
        if check_choice("positive side", positive, ("unknown", "known")) == "known":
            return self.known, self.unknown
        return (self.unknown[-1] - self.unknown).flip(0), (self.known[-1] - self.known).flip(0)

    def aupr(self, positive: str, interpolation: str = "trapezoid") -> float:
        """See `aupr`."""
        check_choice("interpolation", interpolation, ("trapezoid", "step"))
        true, false = (count.double() for count in self.detected(positive))
        precision = functional.pad(true[1:] / (true + false)[1:], (1, 0), value=1.0)
        height = precision[1:] if interpolation == "step" else (precision[1:] + precision[:-1]) / 2
        return float((height * true.diff()).sum() / true[-1])

    def fpr_at_tpr(self, tpr: float, positive: str) -> float:
        """See `fpr_at_tpr`."""
        true, false = self.detected(positive)
        return int(false[_first_at_least(true, check_share("tpr", tpr))]) / int(false[-1])

    def ccr_at_fpr(self, fpr: float) -> float:
        """See `ccr_at_fpr`."""
        threshold = _first_at_least(self.unknown, check_share("fpr", fpr))
        return int(self.correct[threshold - 1]) / int(self.known[-1])


def _first_at_least(counts: Tensor, share: float) -> int:
    # Dividing is correctly rounded, so 19 of 20 is at least 0.95; 0.95 · 20 need not be 19.
    return int((counts.double() / counts[-1] < share).sum())


def _rank(confidence: Values, prediction: Values, label: Values) -> _Ranking:
    confidence, prediction, label = _triple(confidence, prediction, label, unknown=True)
    confidence, order = confidence.sort(descending=True)
    known = label >= 0
    ends = functional.pad(confidence[1:] != confidence[:-1], (0, 1), value=True).nonzero().squeeze(1)

    def count(mask: Tensor) -> Tensor:
        return functional.pad(mask[order].cumsum(0)[ends], (1, 0))

    return _Ranking(count(known), count(known & (prediction == label)), count(~known))


def acc(confidence: Values, prediction: Values, label: Values) -> float:
    """Close-set accuracy |{x ∈ K: ŷ = y}| / |K|, without rejection; unknown samples are left out."""
    _, prediction, label = _triple(confidence, prediction, label, unknown=False)
    known = label >= 0
    return int((known & (prediction == label)).sum()) / int(known.sum())


def oscr(confidence: Values, prediction: Values, label: Values) -> float:
    """Area under CCR over FPR, the open set classification rate (Dhamija et al. 2018), tie-aware.

    At a threshold τ, CCR = |{x ∈ K: ŷ = y, conf ≥ τ}| / |K| and FPR = |{x ∈ U: conf ≥ τ}| / |U|. The area is
    1/(|K||U|) Σ_{x ∈ K, ŷ = y} Σ_{u ∈ U} ([conf_x > conf_u] + ½ [conf_x = conf_u]), at most Acc and AUROC.
    """
    ranking = _rank(confidence, prediction, label)
    return ranking.area(ranking.correct)


def oscr_curve(confidence: Values, prediction: Values, label: Values) -> Curve:
    """The points (FPR, CCR) whose trapezoid area is `oscr`, one per distinct confidence after (0, 0)."""
    ranking = _rank(confidence, prediction, label)
    return Curve(ranking.unknown.double() / ranking.unknown[-1], ranking.correct.double() / ranking.known[-1])


def auroc(confidence: Values, prediction: Values, label: Values) -> float:
    """P(conf_K > conf_U) + ½ P(conf_K = conf_U) for a known and an unknown sample, whichever is positive."""
    ranking = _rank(confidence, prediction, label)
    return ranking.area(ranking.known)


def aupr(
    confidence: Values,
    prediction: Values,
    label: Values,
    *,
    positive: str = "unknown",
    interpolation: str = "trapezoid",
) -> float:
    """Area under precision over recall, with "unknown" (AUPR-out) or "known" (AUPR-in) samples as positives.

    "trapezoid" joins the points, starting at recall 0 and precision 1, as OpenOOD does; "step" is average
    precision, Σ_i (R_i − R_{i−1}) P_i.
    """
    return _rank(confidence, prediction, label).aupr(positive, interpolation)


def fpr_at_tpr(
    confidence: Values, prediction: Values, label: Values, tpr: float = 0.95, *, positive: str = "unknown"
) -> float:
    """The false positive rate where the true positive rate first reaches `tpr`.

    With positive="unknown", as OpenOOD has it: the share of K flagged where at least `tpr` of U is detected
    (conf ≤ τ). With "known": the share of U accepted where at least `tpr` of K is accepted (conf ≥ τ).
    """
    return _rank(confidence, prediction, label).fpr_at_tpr(tpr, positive)


def fpr95(confidence: Values, prediction: Values, label: Values) -> float:
    """`fpr_at_tpr` at 0.95 with unknown samples as positives."""
    return fpr_at_tpr(confidence, prediction, label)


def ccr_at_fpr(confidence: Values, prediction: Values, label: Values, fpr: float) -> float:
    """|{x ∈ K: ŷ = y, conf > τ}| / |K| with τ the ⌈fpr·|U|⌉-th largest confidence of U (OpenOOD).

    The inequality is strict, so the false positive rate stays below `fpr`.
    """
    return _rank(confidence, prediction, label).ccr_at_fpr(fpr)


def evaluate(confidence: Values, prediction: Values, label: Values) -> dict[str, float]:
    """Every metric that needs no threshold, by name, from one sort; unknown is positive in `fpr95`."""
    ranking = _rank(confidence, prediction, label)
    return {
        "acc": acc(confidence, prediction, label),
        "oscr": ranking.area(ranking.correct),
        "auroc": ranking.area(ranking.known),
        "aupr_in": ranking.aupr("known"),
        "aupr_out": ranking.aupr("unknown"),
        "fpr95": ranking.fpr_at_tpr(0.95, "unknown"),
        "ccr@fpr=0.01": ranking.ccr_at_fpr(0.01),
        "ccr@fpr=0.1": ranking.ccr_at_fpr(0.1),
    }


def decide(confidence: Values, prediction: Values, threshold: float) -> Tensor:
    """The prediction (N,) of a sample that is known, conf ≥ threshold, and −1 of one that is not."""
    if math.isnan(threshold):
        raise MedicError("the threshold is NaN; known means confidence >= threshold")
    confidence = as_confidence(confidence)
    prediction = _classes("prediction", prediction, confidence.device)
    _check_shapes(confidence=confidence, prediction=prediction)
    return torch.where(confidence >= threshold, prediction, UNKNOWN)


def hscore(
    confidence: Values, prediction: Values, label: Values, threshold: float, *, per_class: bool = False
) -> HScore:
    """The H-score where a sample is known if and only if conf ≥ threshold.

    acc_k = |{x ∈ K: ŷ = y, conf ≥ threshold}| / |K|, or with `per_class` the mean of that over the classes in
    K; acc_u = |{x ∈ U: conf < threshold}| / |U|; H = 2 acc_k acc_u / (acc_k + acc_u), and 0 where both are 0.
    """
    return hard_hscore(decide(confidence, prediction, threshold), label, per_class=per_class)


def hard_hscore(prediction: Values, label: Values, *, per_class: bool = False) -> HScore:
    """The H-score of hard decisions, prediction −1 = unknown: acc_k = P_K(ŷ = y), acc_u = P_U(ŷ = −1)."""
    prediction = _classes("prediction", prediction)
    label = _classes("label", label, prediction.device)
    _check_shapes(prediction=prediction, label=label)
    _check_present(label, unknown=True)
    known, hit = label >= 0, prediction == label
    acc_k = _mean_over_classes(hit[known], label[known]) if per_class else _share(hit[known])
    acc_u = _share(hit[~known])
    total = acc_k + acc_u
    return HScore(2 * acc_k * acc_u / total if total else 0.0, acc_k, acc_u)


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask)


def _mean_over_classes(hit: Tensor, label: Tensor) -> float:
    counts = label.bincount()
    hits = label[hit].bincount(minlength=len(counts))
    return float((hits.double() / counts)[counts > 0].mean())


def _known_odds(ova: Values, label: Values) -> tuple[Tensor, Tensor]:
    """Log-odds d (K, C) of the known samples and where they are of the sample's own class, a mask (K, C)."""
    odds = ova_log_odds(ova).detach()
    label = _classes("label", label, odds.device)
    _check_shapes(ova=odds[:, 0], label=label)
    _check_present(label, unknown=False)
    classes = odds.shape[1]
    if (highest := int(label.max())) >= classes:
        raise MedicError(f"label {highest} has no one-vs-all classifier: there are {classes}, for classes from 0 on")
    known = label >= 0
    return odds[known], functional.one_hot(label[known], classes).bool()


def conf_p(ova: Values, label: Values) -> float:
    """The mean positive output of a sample's own classifier: mean_{x ∈ K} q_y(x).

    `ova` (N, 2, C) are one-vs-all logits, negative channel first; samples with label −1 are left out. The
    paper's confidence table has it in percent beside `conf_n`: a balanced classifier has both equal.
    """
    odds, own = _known_odds(ova, label)
    return float(odds[own].sigmoid().mean())


def conf_n(ova: Values, label: Values, *, others: str = "mean") -> float:
    """The mean negative output of the other classes' classifiers: mean_{x ∈ K} mean_{j≠y} (1 − q_j(x)).

    With others="hardest" the inner mean is the minimum: the classifier j ≠ y that errs most. `ova` and `label`
    as in `conf_p`. The paper does not say which of the two its table has.
    """
    check_choice("reading of conf_n", others, ("mean", "hardest"))
    odds, own = _known_odds(ova, label)
    if odds.shape[1] == 1:
        raise MedicError("conf_n needs at least two classes: with one there is no other classifier")
    negative = (-odds).sigmoid()
    if others == "mean":
        return float(negative[~own].mean())
    return float(negative.masked_fill(own, torch.inf).amin(dim=1).mean())


def balance(ova: Values, label: Values) -> Tensor:
    """How far every one-vs-all classifier c is from balanced output: mean_{y=c} q_c + mean_{y≠c} q_c − 1.

    `ova` and `label` as in `conf_p`; the result is (C,) in float64. 0 is balanced, negative leans to "not c";
    NaN marks a classifier that has no sample on one side.
    """
    odds, own = _known_odds(ova, label)
    q = odds.sigmoid()
    return _mean(q, own) + _mean(q, ~own) - 1


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.where(mask, 0).sum(dim=0) / mask.sum(dim=0)
