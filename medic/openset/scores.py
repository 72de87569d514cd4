"""Confidence scores for model outputs: one number per sample, large for known classes.

Scores are computed in float64 and are unbounded. Probabilities saturate at 1, which would tie samples whose logits
differ. The two scores that are probabilities (`conf_cls`, `conf_bcls`) are therefore returned as log-odds.
"""

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

import torch
from torch import Tensor

from medic.errors import MedicError
from medic.utils.outputs import Output

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Values: TypeAlias = Union[Tensor, "ArrayLike"]

PARTS = {"ova": "one-vs-all logits", "unknown": "an unknown logit", "features": "features"}
"""Optional `Output` fields that scores read, with a description for error messages."""


class CheckedOutput:
    """An `Output` whose fields are validated and converted once, when a score first reads them."""

    def __init__(self, output: Output | Tensor) -> None:
        self._output = Output.of(output)

    @classmethod
    def of(cls, output: "AnyOutput") -> "CheckedOutput":
        """Wrap an output, unless it is already wrapped."""
        return output if isinstance(output, CheckedOutput) else cls(output)

    def _part(self, name: str) -> Tensor:
        part: Tensor | None = getattr(self._output, name)
        if part is None:
            raise MedicError(
                f"this score requires outputs with {PARTS[name]}: "
                f"return Output(logits, {name}=...), or use the score cls, max-logit or energy"
            )
        return part

    @cached_property
    def logits(self) -> Tensor:
        """Closed-set logits of shape (N, C) in float64."""
        logits = torch.as_tensor(self._output.logits, dtype=torch.float64)
        if logits.dim() != 2 or logits.shape[1] == 0:
            raise MedicError(f"logits must have shape (samples, classes), got {tuple(logits.shape)}")
        return logits

    @cached_property
    def prediction(self) -> Tensor:
        """Closed-set prediction ŷ = argmax_k z_k, of shape (N,)."""
        return self.logits.argmax(dim=1)

    @cached_property
    def log_odds(self) -> Tensor:
        """Log-odds d_k of the one-vs-all head, of shape (N, C). See `ova_log_odds`."""
        odds = ova_log_odds(self._part("ova"))
        if odds.shape != self.logits.shape:
            raise MedicError(
                "the one-vs-all head and the closed-set head must return the same shape (samples, classes), "
                f"got {tuple(odds.shape)} and {tuple(self.logits.shape)}"
            )
        return odds

    @cached_property
    def unknown(self) -> Tensor:
        """Unknown logits of shape (N,) in float64."""
        return torch.as_tensor(self._part("unknown"), dtype=torch.float64)

    @cached_property
    def features(self) -> Tensor:
        """Features of shape (N, F), detached, in their original dtype."""
        features = torch.as_tensor(self._part("features")).detach()
        if features.dim() != 2 or features.shape[1] == 0 or len(features) != len(self.logits):
            raise MedicError(
                f"features must have shape (samples, features), one row for each of {len(self.logits)} rows of "
                f"logits, got {tuple(features.shape)}"
            )
        return features


AnyOutput: TypeAlias = Output | Tensor | CheckedOutput


def ova_log_odds(ova: Values) -> Tensor:
    """Return the log-odds d_k = b_1k − b_0k, of shape (N, C), of one-vs-all logits b, of shape (N, 2, C), in float64.

    sigmoid(d_k) is q_k = p(class k | x).
    """
    pairs = torch.as_tensor(ova, dtype=torch.float64)
    if pairs.dim() != 3 or pairs.shape[1] != 2:
        raise MedicError(f"one-vs-all logits must have shape (samples, 2, classes), got {tuple(pairs.shape)}")
    return pairs[:, 1] - pairs[:, 0]


def predicted_class(output: AnyOutput) -> Tensor:
    """Return the closed-set prediction ŷ = argmax_k z_k, of shape (N,). It is the same for every score."""
    return CheckedOutput.of(output).prediction


def conf_cls(output: AnyOutput) -> Tensor:
    """Return the log-odds of the largest softmax probability, z_ŷ − log Σ_{k≠ŷ} exp z_k. Their sigmoid is max_k p_k.

    With a single class, the log-odds are +∞.
    """
    logits = CheckedOutput.of(output).logits
    top, index = logits.max(dim=1, keepdim=True)
    return top.squeeze(1) - logits.scatter(1, index, -torch.inf).logsumexp(dim=1)


def conf_bcls(output: AnyOutput) -> Tensor:
    """Return the log-odds b_1ŷ − b_0ŷ of the predicted class's one-vs-all classifier. Their sigmoid is q_ŷ.

    ŷ is the closed-set prediction, so q_ŷ can differ from max_k q_k. The result is NaN where a closed-set logit is NaN,
    which `argmax` would hide.
    """
    output = CheckedOutput.of(output)
    confidence = output.log_odds.gather(1, output.prediction.unsqueeze(1)).squeeze(1)
    return confidence.masked_fill(output.logits.isnan().any(1), torch.nan)


def max_logit(output: AnyOutput) -> Tensor:
    """Return the largest closed-set logit, max_k z_k."""
    return CheckedOutput.of(output).logits.amax(dim=1)


def energy(output: AnyOutput) -> Tensor:
    """Return the negative free energy of the closed-set logits, log Σ_k exp z_k."""
    return CheckedOutput.of(output).logits.logsumexp(dim=1)


def entropy(output: AnyOutput, power: float = 0.1) -> Tensor:
    """Return the negative generalised entropy of the softmax p (Liu et al. 2023), −mean_k (p_k (1 − p_k))^power."""
    log_softmax = CheckedOutput.of(output).logits.log_softmax(dim=1)
    # Compute log(1 − p) from log p, to avoid cancellation for p near 1.
    log_rest = torch.log(-torch.expm1(log_softmax))
    return -(power * (log_softmax + log_rest)).exp().mean(dim=1)


def rejection(output: AnyOutput) -> Tensor:
    """Return max_k z_k − z_unknown, the margin of the best class over "unknown". Accepted samples have 0 or more."""
    output = CheckedOutput.of(output)
    return max_logit(output) - output.unknown
