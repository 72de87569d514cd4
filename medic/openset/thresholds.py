"""Rules that choose the threshold of a score. A sample is known if its confidence is at least the threshold."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError, check_choice
from medic.openset.calibration import conformal, highest_acceptance, two_components
from medic.openset.metrics import Outcomes, as_confidence
from medic.openset.registry import SCORES, Score, get_score
from medic.openset.scores import AnyOutput, CheckedOutput, Values
from medic.utils.parts import Limits, check_range


class Threshold(NamedTuple):
    """A threshold and the rule that chose it.

    `value` is on the scale of the confidence, as `decide` and `hscore` expect it. `probability` is the same threshold
    as a probability, if the score is one.
    """

    value: float
    rule: str
    probability: float | None = None

    @classmethod
    def of(cls, value: float, rule: str, probability: bool) -> "Threshold":
        """Return the threshold at a confidence, which is the log-odds of a probability if the score is one."""
        return cls(value, rule, float(torch.tensor(value).double().sigmoid()) if probability else None)

    @property
    def display_value(self) -> float:
        """The threshold for people: as a probability if the score is one."""
        return self.value if self.probability is None else self.probability


@dataclass(frozen=True)
class Rule:
    """A named threshold rule: `function(score, ...)` takes what it `needs` (validation, target, label) by keyword."""

    name: str
    function: Callable[..., Threshold]
    needs: tuple[str, ...]
    description: str
    of: Literal["probability", "rejects"] | None = None
    """The attribute that a score must have: it is a probability, or it rejects samples itself."""

    def goes_with(self, score: Score) -> bool:
        """Whether the rule can choose a threshold for a score."""
        return self.of is None or bool(getattr(score, self.of))

    def check(self, score: Score) -> None:
        """Refuse a score that the rule does not support."""
        if not self.goes_with(score):
            names = " or ".join([name for name, entry in SCORES.items() if self.goes_with(entry)][:2])
            lacks = {"probability": "is not a probability", "rejects": "has no decision for unknown"}[str(self.of)]
            raise MedicError(
                f"threshold {self.name!r} does not support score {score.name!r}, which {lacks}: "
                f"score by {names}, or use the rule source"
            )

    @property
    def oracle(self) -> bool:
        """Whether the rule reads target labels, which nobody has when a model is used."""
        return "label" in self.needs

    @property
    def transductive(self) -> bool:
        """Whether the rule reads target samples without their labels."""
        return "target" in self.needs and not self.oracle


def source(score: Score, *, validation: AnyOutput, accept: float = 0.9) -> Threshold:
    """Return the largest threshold that accepts a sample like those of `validation` with probability `accept`.

    The target is not used; see `conformal`. If there are too few samples to promise this, it is the smallest confidence
    of theirs. The default is the result of a study (docs/studies.md).
    """
    check_range("threshold rule source", Limits(0, 1, above=True), accept=accept)
    confidence = score(validation)
    if not len(confidence):
        raise MedicError("the threshold rule 'source' was given no validation sample")
    value = conformal(confidence, min(accept, highest_acceptance(len(confidence))))
    return Threshold.of(value, "source", score.probability)


def fixed(score: Score, *, probability: float = 0.5) -> Threshold:
    """Return a fixed probability p as log(p / (1 − p)), the scale of the confidence; the score must be a probability.

    0.5 is the rule of OVANet: a sample is unknown if the negative channel wins.
    """
    RULES["fixed"].check(score)
    check_range("threshold rule fixed", Limits(0, 1), probability=probability)
    return Threshold(_logit(probability), "fixed", probability)


def chosen_threshold(score: Score, number: float) -> Threshold:
    """Return a threshold that a person chose: a probability if the score is one, otherwise a number on its scale."""
    if math.isnan(number):
        raise MedicError("threshold nan: give a number")
    if not score.probability:
        return Threshold(float(number), "fixed")
    if not 0 <= number <= 1:
        raise MedicError(f"threshold {number:g}: score {score.name!r} is a probability, give 0 to 1")
    return fixed(score, probability=float(number))


def mixture(score: Score, *, target: AnyOutput) -> Threshold:
    """Return the threshold between two components of the *target's* confidences, without labels; see `two_components`.

    It is transductive: it sees all samples that it decides on.
    """
    return Threshold.of(two_components(score(target)), "two-components", score.probability)


def hard(score: Score) -> Threshold:
    """Return 0, the threshold of a system that decides itself: a sample is known if "unknown" is not the largest."""
    RULES["hard"].check(score)
    return Threshold(0.0, "hard")


def oracle_10(score: Score, *, target: AnyOutput, label: Values) -> Threshold:
    """Return an oracle: the best of ten thresholds by H-score on the *target*, with its labels and unknown samples.

    The authors' published H-scores use this rule. It is optimistic, because nobody can choose this threshold without
    target labels. The ten are μ_i = lo + (hi − lo)·i/9. lo and hi are the extremes over all samples of max_k p_k, or
    for a one-vs-all score of max_k q_k, although its decisions use q_ŷ. Decisions are taken on probabilities if the
    score is one, otherwise on its plain value. The first of equally good thresholds wins.
    """
    target = CheckedOutput.of(target)
    confidence = as_confidence(score(target))
    if not len(confidence):
        raise MedicError("the threshold rule 'oracle-10' was given no target sample")
    return best_of_ten(score, target, confidence, Outcomes.of(target.prediction, label))


def best_of_ten(score: Score, target: CheckedOutput, confidence: Tensor, outcomes: Outcomes) -> Threshold:
    """Return the threshold of `oracle_10` from confidences (N,) and outcomes that were computed before."""
    spread = target.log_odds.amax(dim=1).detach() if "ova" in score.needs else confidence
    level = confidence
    if score.probability:
        spread, level = spread.sigmoid(), level.sigmoid()
    grid: list[float] = torch.linspace(float(spread.min()), float(spread.max()), 10, dtype=torch.float64).tolist()
    hscores = [h.hscore for h in outcomes.hscores(level, grid)]
    best = grid[hscores.index(max(hscores))]
    if not score.probability:
        return Threshold(best, "oracle-10")
    # The sigmoid rounds: samples at μ can have log-odds below those of μ, and the value must accept them too.
    accepted = confidence[level >= best]
    value = torch.cat([accepted, accepted.new_tensor([_logit(best)])]).min()
    return Threshold(float(value), "oracle-10", best)


def _logit(probability: float) -> float:
    return float(torch.tensor(probability, dtype=torch.float64).logit())


RULES: dict[str, Rule] = {
    entry.name: entry
    for entry in (
        Rule("source", source, ("validation",), "accepts 90% of held-out source images"),
        Rule("fixed", fixed, (), "a fixed probability, 0.5 by default", of="probability"),
        Rule("hard", hard, (), "the system's own decision for unknown", of="rejects"),
        Rule("two-components", mixture, ("target",), "between two components of the unlabelled target: transductive"),
        Rule("oracle-10", oracle_10, ("target", "label"), "best H-score of ten values on the labelled target"),
    )
}


def threshold(
    rule: str,
    score: str | Score,
    *,
    validation: AnyOutput | None = None,
    target: AnyOutput | None = None,
    label: Values | None = None,
    **options: float,
) -> Threshold:
    """Return the threshold that `rule` chooses for `score`.

    `validation` is the output on source validation samples, `target` the output on target samples with labels
    `label`; a rule receives only what it needs. `options` are arguments of its function: `accept`, `probability`.
    """
    chosen = RULES[check_choice("threshold rule", rule, RULES)]
    arguments: dict[str, Any] = {"validation": validation, "target": target, "label": label}
    if missing := [name for name in chosen.needs if arguments[name] is None]:
        raise MedicError(f"the threshold rule {rule!r} needs {' and '.join(missing)}, which was not given")
    return chosen.function(get_score(score), **{name: arguments[name] for name in chosen.needs}, **options)
