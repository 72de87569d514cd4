"""Rules that choose the threshold for a score. Samples at or above the threshold are treated as known."""

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

    `value` is on the scale of the confidence, as `decide` and `hscore` expect. `probability` is the same threshold as a
    probability, or None if the score is not a probability.
    """

    value: float
    rule: str
    probability: float | None = None

    @classmethod
    def of(cls, value: float, rule: str, probability: bool) -> "Threshold":
        """Create a threshold at a confidence. `probability` marks confidences that are log-odds of a probability."""
        return cls(value, rule, float(torch.tensor(value).double().sigmoid()) if probability else None)

    @property
    def display_value(self) -> float:
        """The threshold to display: a probability if the score is one, otherwise `value`."""
        return self.value if self.probability is None else self.probability


@dataclass(frozen=True)
class Rule:
    """A named threshold rule. `function(score, ...)` takes the arguments in `needs` as keyword arguments.

    `needs` may contain "validation", "target" and "label".
    """

    name: str
    function: Callable[..., Threshold]
    needs: tuple[str, ...]
    description: str
    of: Literal["probability", "rejects"] | None = None
    """Required score attribute: the score must be a probability, or reject samples itself."""

    def goes_with(self, score: Score) -> bool:
        """Return whether the rule can choose a threshold for a score."""
        return self.of is None or bool(getattr(score, self.of))

    def check(self, score: Score) -> None:
        """Raise an error if the rule does not support a score."""
        if not self.goes_with(score):
            names = " or ".join([name for name, entry in SCORES.items() if self.goes_with(entry)][:2])
            lacks = {"probability": "is not a probability", "rejects": "does not reject images itself"}[str(self.of)]
            raise MedicError(
                f"threshold {self.name!r} does not support score {score.name!r}, which {lacks}: "
                f"use score {names}, or threshold source"
            )

    @property
    def oracle(self) -> bool:
        """Whether the rule uses target labels, which are not available in practice."""
        return "label" in self.needs

    @property
    def transductive(self) -> bool:
        """Whether the rule uses target samples without their labels."""
        return "target" in self.needs and not self.oracle


def source(score: Score, *, validation: AnyOutput, accept: float = 0.9) -> Threshold:
    """Return the largest threshold that accepts samples like those in `validation` with probability `accept`.

    The rule does not use the target; see `conformal`. With too few samples for this guarantee, the threshold is their
    smallest confidence. The default for `accept` comes from a study (docs/studies.md).
    """
    check_range("threshold rule source", Limits(0, 1, above=True), accept=accept)
    confidence = score(validation)
    if not len(confidence):
        raise MedicError("threshold rule 'source' requires at least one validation sample, got none")
    value = conformal(confidence, min(accept, highest_acceptance(len(confidence))))
    return Threshold.of(value, "source", score.probability)


def fixed(score: Score, *, probability: float = 0.5) -> Threshold:
    """Return the threshold at a fixed probability p, as log-odds log(p / (1 − p)). The score must be a probability.

    The default, 0.5, is OVANet's rule: a sample is unknown if the negative channel wins.
    """
    RULES["fixed"].check(score)
    check_range("threshold rule fixed", Limits(0, 1), probability=probability)
    return Threshold(_logit(probability), "fixed", probability)


def chosen_threshold(score: Score, number: float) -> Threshold:
    """Return a user-provided threshold: a probability if the score is one, otherwise a value of the score."""
    if math.isnan(number):
        raise MedicError("threshold must be a number, got nan")
    if not score.probability:
        return Threshold(float(number), "fixed")
    if not 0 <= number <= 1:
        raise MedicError(f"threshold must be from 0 to 1 because score {score.name!r} is a probability, got {number:g}")
    return fixed(score, probability=float(number))


def mixture(score: Score, *, target: AnyOutput) -> Threshold:
    """Return the threshold between two components fitted to the *target's* confidences; see `two_components`.

    The rule uses no labels, but it is transductive: it uses all the samples that it accepts or rejects.
    """
    return Threshold.of(two_components(score(target)), "two-components", score.probability)


def hard(score: Score) -> Threshold:
    """Return 0, the threshold for a system with its own rule: reject a sample if "unknown" has the largest logit."""
    RULES["hard"].check(score)
    return Threshold(0.0, "hard")


def oracle_10(score: Score, *, target: AnyOutput, label: Values) -> Threshold:
    """Return an oracle threshold: of ten candidates, the one with the best H-score on the labelled *target*.

    The authors' published H-scores use this rule. It is optimistic, because choosing the threshold requires target
    labels. The candidates are μ_i = lo + (hi − lo)·i/9. lo and hi are the extremes of max_k p_k over all samples. For a
    one-vs-all score they are the extremes of max_k q_k, although its decisions use q_ŷ. Candidates are compared with
    probabilities if the score is a probability, otherwise with the score itself. The first of equally good candidates
    wins.
    """
    target = CheckedOutput.of(target)
    confidence = as_confidence(score(target))
    if not len(confidence):
        raise MedicError("threshold rule 'oracle-10' requires at least one target sample, got none")
    return best_of_ten(score, target, confidence, Outcomes.of(target.prediction, label))


def best_of_ten(score: Score, target: CheckedOutput, confidence: Tensor, outcomes: Outcomes) -> Threshold:
    """Return the threshold of `oracle_10` from precomputed confidences and outcomes."""
    spread = target.log_odds.amax(dim=1).detach() if "ova" in score.needs else confidence
    level = confidence
    if score.probability:
        spread, level = spread.sigmoid(), level.sigmoid()
    grid: list[float] = torch.linspace(float(spread.min()), float(spread.max()), 10, dtype=torch.float64).tolist()
    hscores = [h.hscore for h in outcomes.hscores(level, grid)]
    best = grid[hscores.index(max(hscores))]
    if not score.probability:
        return Threshold(best, "oracle-10")
    # The sigmoid rounds, so samples at μ can have log-odds below those of μ. The value must accept them too.
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
        Rule("hard", hard, (), "the system's own decision about unknown images", of="rejects"),
        Rule(
            "two-components",
            mixture,
            ("target",),
            "boundary between two components fitted to unlabelled target scores (transductive)",
        ),
        Rule("oracle-10", oracle_10, ("target", "label"), "best H-score among ten thresholds on the labelled target"),
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

    `validation` contains the outputs for source validation samples, and `target` the outputs for target samples with
    labels `label`. A rule receives only the arguments that it requires. `options` are passed to the rule's function:
    `accept` for `source`, `probability` for `fixed`.
    """
    chosen = RULES[check_choice("threshold rule", rule, RULES)]
    arguments: dict[str, Any] = {"validation": validation, "target": target, "label": label}
    if missing := [name for name in chosen.needs if arguments[name] is None]:
        raise MedicError(f"threshold rule {rule!r} is missing required arguments: {' and '.join(missing)}")
    return chosen.function(get_score(score), **{name: arguments[name] for name in chosen.needs}, **options)
