"""The scores by name."""

from torch import Tensor

from medic.errors import check_choice
from medic.openset.fitted import Fitted, Mahalanobis, Nearest, OpenMax
from medic.openset.scores import Score, conf_bcls, conf_cls, energy, max_logit, rejection
from medic.outputs import Output

SCORES: dict[str, Score] = {
    entry.name: entry
    for entry in (
        Score("cls", conf_cls, "largest softmax probability of the close-set head (MSP)", probability=True),
        Score(
            "bcls", conf_bcls, "one-vs-all probability of the close-set prediction", needs=("ova",), probability=True
        ),
        Score("max-logit", max_logit, "largest close-set logit"),
        Score("energy", energy, "log-sum-exp of the close-set logits"),
        Score("reject", rejection, "largest logit against that of unknown", needs=("unknown",), rejects=True),
        Score("openmax", None, "logits recalibrated by extreme values", rejects=True, fitter=OpenMax.fit),
        Score("knn", None, "nearness to the 50th nearest training feature", needs=("features",), fitter=Nearest.fit),
        Score("mahalanobis", None, "nearness to the nearest class mean", needs=("features",), fitter=Mahalanobis.fit),
    )
}
FITTED: dict[str, type[Fitted]] = {"openmax": OpenMax, "knn": Nearest, "mahalanobis": Mahalanobis}
"""What holds the fitted tensors of those that are fitted."""


def get_score(score: str | Score) -> Score:
    """The score of that name; a `Score` is returned as it is."""
    return score if isinstance(score, Score) else SCORES[check_choice("score", score, SCORES)]


def score(name: str | Score, output: Output | Tensor) -> Tensor:
    """The confidence (N,) in float64 of every sample of `output` under the named score, large = known."""
    return get_score(name)(output)
