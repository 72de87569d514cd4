"""Settings for the evaluation: score, threshold rule, and when to evaluate."""

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
            "confidence score that ranks and rejects images: bcls, cls, max-logit, energy, openmax, knn, …",
            default_rule="the method's",
        ),
    ]
    threshold: Annotated[
        str,
        setting(
            "threshold rule: source, fixed, hard, two-components or oracle-10",
            default_rule="source, or hard for scores that reject by themselves",
            takes="RULE",
        ),
    ]
    evaluate_every: Annotated[
        int,
        setting(
            "iterations between evaluations",
            default_rule="300, or a fifth of a short run but at least 20",
            limits=COUNT,
            takes="N",
        ),
    ]
    checkpoint_every: Annotated[
        int,
        setting(
            "iterations between checkpoints",
            default_rule="once a minute and after every evaluation",
            limits=COUNT,
            local=True,
            takes="N",
        ),
    ]
    views: Annotated[
        int,
        setting(
            "random views per image at test time, whose outputs are averaged (32 in MVDG)", 1, limits=COUNT, takes="N"
        ),
    ]
    all_scores: Annotated[
        bool,
        setting("report OSCR for every score, including scores fitted on training features", False),
    ]
    save_features: Annotated[
        bool,
        setting("save features in predictions.npz, training images included, to fit scores on them later", False),
    ]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The score and threshold rule that separate known from unknown images, and the evaluation schedule."""

    score: str
    threshold: str
    evaluate_every: int
    checkpoint_every: int | None
    """None to write a checkpoint once a minute and after every evaluation."""
    views: int
    all_scores: bool
    save_features: bool


def resolve_evaluation(
    settings: Mapping[str, Any], kind: "ObjectiveKind", head: "type[Head]", iterations: int
) -> EvaluationConfig:
    """Resolve the evaluation settings for an objective and a head."""
    from medic.models.heads import Head
    from medic.openset import RULES, get_score

    score = get_score(settings["score"] or kind.score)
    name = score.name
    if "ova" in score.needs and not head.ova:
        raise MedicError(f"score {name!r} requires a one-vs-all head: add --objective ce+ova")
    if "head" in score.needs and head.linear is Head.linear:
        raise MedicError(f"score {name!r} requires a linear head, which this method does not use: use --score energy")
    if "unknown" in score.needs and not head.unknown:
        raise MedicError(f"score {name!r} requires a logit for the unknown class: add --objective onering")
    rule = check_choice("threshold rule", settings["threshold"] or ("hard" if score.rejects else "source"), RULES)
    RULES[rule].check(score)
    every = 300 if iterations >= 1500 else max(20, iterations // 5)
    return EvaluationConfig(
        score=name,
        threshold=rule,
        evaluate_every=settings["evaluate_every"] or every,
        checkpoint_every=settings["checkpoint_every"],
        views=settings["views"],
        all_scores=settings["all_scores"],
        save_features=settings["save_features"],
    )
