"""The evaluation of a run: score, threshold rule, and when to evaluate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from medic.config.fields import setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT

if TYPE_CHECKING:
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind


class EvaluationSettings(TypedDict, total=False):
    """Settings for the evaluation. All of them are optional."""

    score: Annotated[
        str,
        setting(
            "confidence that ranks and rejects: bcls, cls, max-logit, energy, openmax, knn, …",
            default_rule="the method's",
        ),
    ]
    threshold: Annotated[
        str,
        setting(
            "threshold rule: source, fixed, hard, two-components or oracle-10",
            default_rule="source, or the system's own",
            takes="RULE",
        ),
    ]
    evaluate_every: Annotated[
        int,
        setting(
            "iterations between evaluations", default_rule="300, or a fifth of a short run", limits=COUNT, takes="N"
        ),
    ]
    checkpoint_every: Annotated[
        int,
        setting(
            "iterations between checkpoints",
            default_rule="one minute; always at an evaluation",
            limits=COUNT,
            local=True,
            takes="N",
        ),
    ]
    views: Annotated[
        int,
        setting(
            "random views per image at test time, whose outputs are averaged: 32 in MVDG", 1, limits=COUNT, takes="N"
        ),
    ]
    all_scores: Annotated[
        bool,
        setting("measure OSCR by every score, also by those that are fitted on features of the training images", False),
    ]
    save_features: Annotated[
        bool,
        setting(
            "keep features in predictions.npz, of training images too, so that scores can be fitted on them", False
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The score and the threshold rule that separate known from unknown images, and the times of evaluation."""

    score: str
    threshold: str
    evaluate_every: int
    checkpoint_every: int | None
    """None writes checkpoints by time alone, one a minute."""
    views: int
    all_scores: bool
    save_features: bool


def resolve_evaluation(
    settings: Mapping[str, Any], kind: "ObjectiveKind", head: "type[Head]", iterations: int
) -> EvaluationConfig:
    """Complete the settings of the evaluation for an objective and a head."""
    from medic.models.heads import Head
    from medic.openset import RULES, get_score

    score = get_score(settings["score"] or kind.score)
    name = score.name
    if "ova" in score.needs and not head.ova:
        raise MedicError(f"score {name!r} needs a one-vs-all head: train with --objective ce+ova")
    if "head" in score.needs and head.linear is Head.linear:
        raise MedicError(f"score {name!r} needs a linear head, which this method lacks: use --score energy")
    if "unknown" in score.needs and not head.unknown:
        raise MedicError(f"score {name!r} needs an output for unknown: train with --objective onering")
    rule = check_choice("threshold rule", settings["threshold"] or ("hard" if score.rejects else "source"), RULES)
    RULES[rule].check(score)
    every = 300 if iterations >= 1500 else max(1, iterations // 5)
    return EvaluationConfig(
        score=name,
        threshold=rule,
        evaluate_every=settings["evaluate_every"] or every,
        checkpoint_every=settings["checkpoint_every"],
        views=settings["views"],
        all_scores=settings["all_scores"],
        save_features=settings["save_features"],
    )
