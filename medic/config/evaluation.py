"""The evaluation of a run: score, threshold rule, and when to evaluate."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT

if TYPE_CHECKING:
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec(Spec):
    """The score and the threshold rule that separate known from unknown images, and the times of evaluation."""

    score: str | None = setting(
        None, "confidence that ranks and rejects: bcls, cls, max-logit, energy, openmax, knn, … (default: the method's)"
    )
    threshold: str | None = setting(
        None,
        "threshold rule: source, fixed, hard, two-components or oracle-10 (default: source, or the system's own)",
        takes="RULE",
    )
    evaluate_every: int | None = setting(
        None, "iterations between evaluations (default: 300, or a fifth of a short run)", limits=COUNT, takes="N"
    )
    checkpoint_every: int | None = setting(
        None,
        "iterations between checkpoints (default: one minute; always at an evaluation)",
        limits=COUNT,
        local=True,
        takes="N",
    )
    views: int = setting(
        1, "random views per image at test time, whose outputs are averaged: 32 in MVDG", limits=COUNT, takes="N"
    )
    save_features: bool = setting(
        False, "keep features in predictions.npz, of training images too, so that scores can be fitted on them"
    )

    def completed(self, kind: "ObjectiveKind", head: "type[Head]", iterations: int) -> "EvaluationSpec":
        """Return the complete spec for an objective and a head."""
        from medic.openset import RULES, get_score

        score = get_score(self.score or kind.score)
        name = score.name
        if "ova" in score.needs and not head.ova:
            raise MedicError(f"score {name!r} needs a one-vs-all head: train with --objective ce+ova")
        if "unknown" in score.needs and not head.unknown:
            raise MedicError(f"score {name!r} needs an output for unknown: train with --objective onering")
        rule = check_choice("threshold rule", self.threshold or ("hard" if score.rejects else "source"), RULES)
        RULES[rule].check(score)
        every = 300 if iterations >= 1500 else max(1, iterations // 5)
        return replace(self, score=name, threshold=rule, evaluate_every=self.evaluate_every or every)
