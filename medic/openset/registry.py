"""The registry of scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from medic.errors import MedicError
from medic.openset.fitted import Fitted, Mahalanobis, Nearest, OpenMax
from medic.openset.scores import AnyOutput, Values, conf_bcls, conf_cls, energy, max_logit, rejection
from medic.utils.outputs import Output
from medic.utils.plugins import Group


@dataclass(frozen=True)
class Score:
    """A named confidence score.

    `function` maps the outputs of N samples to confidences (N,) in float64. A score with a `fitter` is fitted first.
    `needs` names the parts of an `Output` that the score reads besides the logits. The sigmoid of a score with
    `probability` is a probability. A score that `rejects` is negative where the system itself decides "unknown".
    """

    name: str
    function: Callable[[AnyOutput], Tensor] | None
    description: str
    needs: tuple[str, ...] = ()
    probability: bool = False
    rejects: bool = False
    fitter: type[Fitted] | None = None

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the confidence (N,) of every sample."""
        if self.function is None:
            raise MedicError(f"the score {self.name!r} is fitted on training samples first: score.fit(output, label)")
        return self.function(output)

    def fit(self, output: AnyOutput, label: Values) -> "Score":
        """Return the score fitted on the outputs for training samples and their classes (N,), if it needs fitting."""
        return self if self.fitter is None else replace(self, function=self.fitter.fit(output, label), fitter=None)

    def reads(self, output: Output) -> bool:
        """Whether an output has every part that the score needs."""
        return all(getattr(output, part) is not None for part in self.needs)


SCORES: dict[str, Score] = {
    entry.name: entry
    for entry in (
        Score("cls", conf_cls, "largest softmax probability of the closed-set head (MSP)", probability=True),
        Score(
            "bcls", conf_bcls, "one-vs-all probability of the closed-set prediction", needs=("ova",), probability=True
        ),
        Score("max-logit", max_logit, "largest closed-set logit"),
        Score("energy", energy, "log-sum-exp of the closed-set logits"),
        Score("reject", rejection, "largest logit minus the logit of unknown", needs=("unknown",), rejects=True),
        Score("openmax", None, "logits recalibrated by extreme value theory", rejects=True, fitter=OpenMax),
        Score(
            "knn", None, "negative distance to the 50th nearest training feature", needs=("features",), fitter=Nearest
        ),
        Score(
            "mahalanobis", None, "negative distance to the nearest class mean", needs=("features",), fitter=Mahalanobis
        ),
    )
}
SCORE_GROUP = Group("medic.scores", "score", Score, SCORES)


def get_score(score: str | Score) -> Score:
    """Return the score of that name, also of an installed package; a `Score` is returned unchanged."""
    return score if isinstance(score, Score) else SCORE_GROUP.find(score)


def score(name: str | Score, output: AnyOutput) -> Tensor:
    """Return the confidence (N,) of every sample in float64, large for a known class."""
    return get_score(name)(output)
