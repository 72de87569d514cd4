"""Rules that choose the threshold of a score; a sample is known if and only if its confidence is at least it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from medic.errors import MedicError, check_choice
from medic.openset.metrics import as_confidence, check_share, hscore
from medic.openset.registry import SCORES, get_score
from medic.openset.scores import Score, Values, output_log_odds, predicted_class
from medic.outputs import Output


class Threshold(NamedTuple):
    """A threshold and the rule it comes from.

    `value` is on the scale of the confidence, ready for `decide` and `hscore`. `probability` is the same
    threshold as a probability, where the score is one.
    """

    value: float
    rule: str
    probability: float | None = None


@dataclass(frozen=True)
class Rule:
    """A rule by name: `function(score, ...)` is given by keyword what it `needs`: validation, target, label."""

    name: str
    function: Callable[..., Threshold]
    needs: tuple[str, ...]
    description: str
    of: Literal["probability", "rejects"] | None = None
    """What a score must be for it: a probability, or one that says unknown itself."""

    def goes_with(self, score: Score) -> bool:
        """Whether it can choose a threshold of a score."""
        return self.of is None or bool(getattr(score, self.of))

    def check(self, score: Score) -> None:
        """Refuse a score that it does not go with."""
        if not self.goes_with(score):
            names = " or ".join(name for name, entry in SCORES.items() if self.goes_with(entry))
            lacks = {"probability": "is no probability", "rejects": "does not say unknown"}[str(self.of)]
            raise MedicError(
                f"threshold {self.name!r} does not go with score {score.name!r}, which {lacks}: score by {names}, "
                "or use the rule source"
            )

    @property
    def oracle(self) -> bool:
        """Whether it looks at target labels, which nobody has when a model is used."""
        return "label" in self.needs


def source(score: Score, *, validation: Output, keep: float = 0.95) -> Threshold:
    """The largest threshold that calls at least `keep` of the source validation samples known.

    It is the ⌈keep·N⌉-th largest confidence of the N samples of `validation`; nothing of the target is used.
    """
    confidence = as_confidence(score(validation)).sort(descending=True).values
    count = len(confidence)
    if not count:
        raise MedicError("the threshold rule 'source' was given no validation sample")
    kept = torch.arange(1, count + 1, dtype=torch.float64, device=confidence.device) / count
    value = confidence[int((kept < check_share("keep", keep)).sum())]
    return Threshold(float(value), "source", float(value.sigmoid()) if score.probability else None)


def fixed(score: Score, *, probability: float = 0.5) -> Threshold:
    """A probability, whatever the data: log(p / (1 − p)) on the scale of the confidence.

    0.5 is the rule of OVANet (unknown if the negative channel wins). Only for a score that is a probability.
    """
    RULES["fixed"].check(score)
    if not 0 <= probability <= 1:
        raise MedicError(f"probability must be in [0, 1], not {probability}")
    return Threshold(_logit(probability), "fixed", probability)


def hard(score: Score) -> Threshold:
    """The decision of a system with an output for unknown: known means that a class has the larger one, 0 or more."""
    RULES["hard"].check(score)
    return Threshold(0.0, "hard")


def oracle_10(score: Score, *, target: Output, label: Values) -> Threshold:
    """An oracle: the best H-score of ten thresholds on the *target*, with its labels and its unknown samples.

    It is the rule of the authors' published H-scores: optimistic, and not a threshold that anybody could have
    chosen. The ten are μ_i = lo + (hi − lo)·i/9, with lo and hi the extremes over known and unknown samples of
    max_k p_k, or for a one-vs-all score of max_k q_k although its decisions use q_ŷ. Decisions are taken on
    probabilities where the score is one, otherwise on its plain value. The first of equally good ones wins.
    """
    confidence = as_confidence(score(target))
    if not len(confidence):
        raise MedicError("the threshold rule 'oracle-10' was given no target sample")
    spread = output_log_odds(target).amax(dim=1).detach() if "ova" in score.needs else confidence
    level = confidence
    if score.probability:
        spread, level = spread.sigmoid(), level.sigmoid()
    grid: list[float] = torch.linspace(float(spread.min()), float(spread.max()), 10, dtype=torch.float64).tolist()
    prediction = predicted_class(target)
    best = max(grid, key=lambda mu: hscore(level, prediction, label, mu).hscore)
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
        Rule("source", source, ("validation",), "keeps 95 % of the source validation samples"),
        Rule("fixed", fixed, (), "a probability, 0.5 unless given", of="probability"),
        Rule("hard", hard, (), "none: the system itself says unknown", of="rejects"),
        Rule("oracle-10", oracle_10, ("target", "label"), "best H-score of ten values on the labelled target"),
    )
}


def threshold(
    rule: str,
    score: str | Score,
    *,
    validation: Output | None = None,
    target: Output | None = None,
    label: Values | None = None,
    **options: float,
) -> Threshold:
    """The threshold that `rule` chooses for `score`.

    `validation` is the output on source validation samples, `target` that on target samples with labels
    `label`; a rule is shown only what it needs. `options` are those of its function: `keep`, `probability`.
    """
    chosen = RULES[check_choice("threshold rule", rule, RULES)]
    given: dict[str, Any] = {"validation": validation, "target": target, "label": label}
    if missing := [name for name in chosen.needs if given[name] is None]:
        raise MedicError(f"the threshold rule {rule!r} needs {' and '.join(missing)}, which was not given")
    return chosen.function(get_score(score), **{name: given[name] for name in chosen.needs}, **options)
