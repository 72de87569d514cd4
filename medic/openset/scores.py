"""Scores: what a model says about a sample, turned into one number that is large for a known class.

Every score is computed in float64 and is unbounded: a probability saturates at 1 and ties samples that the
logits still tell apart, so the two scores that are probabilities are ranked by their log-odds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, Union

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.outputs import Output

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Values: TypeAlias = Union[Tensor, "ArrayLike"]


Function = Callable[[Output], Tensor]
"""A confidence (N,) in float64, large = known, from the outputs for N samples."""


@dataclass(frozen=True)
class Score:
    """A confidence by name.

    `needs` names the parts of an output that it reads beside the logits. `probability` says that the sigmoid of its
    value is a probability, and `rejects` that the system itself calls what is below 0 unknown. A score with a `fitter`
    has to be fitted on training samples before it can be used.
    """

    name: str
    function: Function | None
    description: str
    needs: tuple[str, ...] = ()
    probability: bool = False
    rejects: bool = False
    fitter: Callable[[Output, Tensor], Function] | None = None

    def __call__(self, output: Output | Tensor) -> Tensor:
        """The confidence (N,) of every sample of `output`."""
        if self.function is None:
            raise MedicError(f"the score {self.name!r} is fitted on training samples first: score.fit(output, label)")
        return self.function(Output.of(output))

    def fit(self, output: Output, label: Tensor) -> "Score":
        """The score fitted on the outputs for training samples and their classes (N,), if it needs that."""
        return self if self.fitter is None else replace(self, function=self.fitter(output, label), fitter=None)

    def reads(self, output: Output) -> bool:
        """Whether an output has all the parts that it needs."""
        return all(getattr(output, part) is not None for part in self.needs)


def close_set_logits(output: Output) -> Tensor:
    """The close-set logits (N, C) in float64."""
    logits = torch.as_tensor(output.logits, dtype=torch.float64)
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise MedicError(f"logits must have shape (samples, classes), not {tuple(logits.shape)}")
    return logits


def predicted_class(output: Output | Tensor) -> Tensor:
    """The close-set class ŷ = argmax_k z_k (N,), whatever the score."""
    return close_set_logits(Output.of(output)).argmax(dim=1)


def ova_log_odds(ova: Values) -> Tensor:
    """d_k = b_1k − b_0k (N, C) of one-vs-all logits b (N, 2, C) in float64; sigmoid(d_k) is q_k, p(class k | x)."""
    pairs = torch.as_tensor(ova, dtype=torch.float64)
    if pairs.dim() != 3 or pairs.shape[1] != 2:
        raise MedicError(f"one-vs-all logits must have shape (samples, 2, classes), not {tuple(pairs.shape)}")
    return pairs[:, 1] - pairs[:, 0]


def output_log_odds(output: Output) -> Tensor:
    """d_k (N, C) of the one-vs-all head of `output`, which must have one over the classes of the logits."""
    if output.ova is None:
        raise MedicError(
            "this model has no one-vs-all head to score by; train it with one, or score by cls, max-logit, energy"
        )
    odds, logits = ova_log_odds(output.ova), close_set_logits(output)
    if odds.shape != logits.shape:
        raise MedicError(
            f"the one-vs-all head gives {tuple(odds.shape)} (samples, classes) "
            f"and the close-set head {tuple(logits.shape)}; they must be equal"
        )
    return odds


def conf_cls(output: Output) -> Tensor:
    """Log-odds of the largest softmax probability: z_ŷ − log Σ_{k≠ŷ} exp z_k; its sigmoid is max_k p_k.

    With one class there is nothing else to be, and the log-odds are +∞.
    """
    logits = close_set_logits(output)
    top, index = logits.max(dim=1, keepdim=True)
    return top.squeeze(1) - logits.scatter(1, index, -torch.inf).logsumexp(dim=1)


def conf_bcls(output: Output) -> Tensor:
    """Log-odds of the one-vs-all classifier of the predicted class: b_1ŷ − b_0ŷ; its sigmoid is q_ŷ.

    ŷ is the close-set prediction: q_ŷ, not max_k q_k.
    """
    return output_log_odds(output).gather(1, predicted_class(output).unsqueeze(1)).squeeze(1)


def max_logit(output: Output) -> Tensor:
    """The largest close-set logit: max_k z_k."""
    return close_set_logits(output).amax(dim=1)


def energy(output: Output) -> Tensor:
    """The negative free energy of the close-set logits: log Σ_k exp z_k."""
    return close_set_logits(output).logsumexp(dim=1)


def rejection(output: Output) -> Tensor:
    """How far the largest close-set logit is above that of unknown: max_k z_k − z_unknown; known means 0 or more."""
    if output.unknown is None:
        raise MedicError("this model has no output for unknown to score by; use cls, max-logit or energy")
    return max_logit(output) - torch.as_tensor(output.unknown, dtype=torch.float64)
