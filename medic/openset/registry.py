"""The registry of scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from medic.errors import MedicError
from medic.openset.fitting import Fitted
from medic.openset.gaussians import Mahalanobis, RelativeMahalanobis
from medic.openset.linear import Ash, Fdbd, ReAct, Residual, Scale, Vim
from medic.openset.neighbours import Nearest, NNGuide
from medic.openset.openmax import OpenMax
from medic.openset.posteriors import KlMatching, Platt, Temperature
from medic.openset.scores import AnyOutput, Values, conf_bcls, conf_cls, energy, entropy, max_logit, rejection
from medic.utils.outputs import LinearHead, Output
from medic.utils.plugins import Group


@dataclass(frozen=True)
class Score:
    """A named confidence score.

    `function` maps the outputs of N samples to confidences of shape (N,) in float64. A score with a `fitter` must be
    fitted first. `needs` lists the `Output` fields that the score reads in addition to the logits, and "head" if
    fitting requires the weights of a linear head. If `probability` is set, the sigmoid of the score is a probability.
    If `rejects` is set, the score is negative where the system itself decides "unknown".
    """

    name: str
    function: Callable[[AnyOutput], Tensor] | None
    description: str
    needs: tuple[str, ...] = ()
    probability: bool = False
    rejects: bool = False
    fitter: type[Fitted] | None = None

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the confidence of every sample as a tensor of shape (N,)."""
        if self.function is None:
            raise MedicError(f"score {self.name!r} must be fitted first: call score.fit(output, label)")
        return self.function(output)

    def fit(self, output: AnyOutput, label: Values, head: LinearHead | None = None) -> "Score":
        """Return the fitted score. A score that does not require fitting is returned unchanged.

        `output` and `label` describe the samples in `split`.
        """
        if self.fitter is None:
            return self
        if "head" in self.needs and head is None:
            raise MedicError(
                f"score {self.name!r} requires the weights of a linear head: call score.fit(output, label, head)"
            )
        others = [head] if "head" in self.needs else []
        return replace(self, function=self.fitter.fit(output, label, *others), fitter=None)

    @property
    def split(self) -> Literal["train", "validation"]:
        """The split that the score is fitted on, if it requires fitting."""
        return "train" if self.fitter is None else self.fitter.split

    def reads(self, output: Output, head: LinearHead | None = None) -> bool:
        """Return whether an output has all fields that the score requires, and `head` is set if required."""
        return all(head is not None if part == "head" else getattr(output, part) is not None for part in self.needs)


SCORES: dict[str, Score] = {
    entry.name: entry
    for entry in (
        Score("cls", conf_cls, "largest softmax probability of the closed-set head (MSP)", probability=True),
        Score(
            "bcls", conf_bcls, "one-vs-all probability of the closed-set prediction", needs=("ova",), probability=True
        ),
        Score("max-logit", max_logit, "largest closed-set logit"),
        Score("energy", energy, "log-sum-exp of the closed-set logits"),
        Score("gen", entropy, "negative generalised entropy of the softmax (GEN)"),
        Score("reject", rejection, "largest logit minus the unknown logit", needs=("unknown",), rejects=True),
        Score("openmax", None, "logits recalibrated with extreme value theory", rejects=True, fitter=OpenMax),
        Score(
            "knn", None, "negative distance to the 50th nearest training feature", needs=("features",), fitter=Nearest
        ),
        Score(
            "mahalanobis", None, "negative distance to the nearest class mean", needs=("features",), fitter=Mahalanobis
        ),
        Score(
            "rmds",
            None,
            "distance to the overall mean minus the distance to the nearest class mean",
            needs=("features",),
            fitter=RelativeMahalanobis,
        ),
        Score("nnguide", None, "energy times the similarity to training features", needs=("features",), fitter=NNGuide),
        Score(
            "temperature",
            None,
            "largest softmax probability at a fitted temperature",
            probability=True,
            fitter=Temperature,
        ),
        Score(
            "platt",
            None,
            "one-vs-all probability of the closed-set prediction, calibrated by a fitted scale and shift",
            needs=("ova",),
            probability=True,
            fitter=Platt,
        ),
        Score("kl-matching", None, "negative divergence from the nearest class template", fitter=KlMatching),
        Score(
            "react", None, "energy of features clipped at a quantile (ReAct)", needs=("features", "head"), fitter=ReAct
        ),
        Score(
            "ash", None, "energy of the largest features after scaling (ASH-S)", needs=("features", "head"), fitter=Ash
        ),
        Score("scale", None, "energy of scaled features (SCALE)", needs=("features", "head"), fitter=Scale),
        Score(
            "residual",
            None,
            "negative norm of the features outside the principal subspace",
            needs=("features", "head"),
            fitter=Residual,
        ),
        Score("vim", None, "energy minus the scaled residual (ViM)", needs=("features", "head"), fitter=Vim),
        Score("fdbd", None, "mean distance to the decision boundaries (fDBD)", needs=("features", "head"), fitter=Fdbd),
    )
}
SCORE_GROUP = Group("medic.scores", "score", Score, SCORES)


def get_score(score: str | Score) -> Score:
    """Return a built-in score, or one from an installed package, by name. A `Score` is returned unchanged."""
    return score if isinstance(score, Score) else SCORE_GROUP.find(score)


def score(name: str | Score, output: AnyOutput) -> Tensor:
    """Return the confidence of every sample, of shape (N,) in float64. Known classes have large confidences."""
    return get_score(name)(output)
