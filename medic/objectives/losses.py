"""The paper's losses, cross-entropy and one-vs-all, and the objectives built from them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from medic.objectives.objective import ObjectiveKind
from medic.utils.outputs import Output
from medic.utils.parts import Part


def ce(output: Output, y: Tensor) -> Tensor:
    """Return the cross-entropy -log p_y of the closed-set logits, one value per sample, of shape (N,)."""
    return functional.cross_entropy(output.logits, y, reduction="none")


@dataclass(frozen=True)
class Ova:
    """One-vs-all loss: each sample trains the binary classifier for its class and the hardest of the others.

    The loss per sample is `-scale · [log q_y + min_{j≠y} log(1 - q_j)]`, where q_k is the positive probability of
    classifier k. The paper uses a scale of 1, the authors' code 0.5. The implementation uses the log-odds
    d_k = log q_k / (1 - q_k) and computes `softplus(-d_y) + max_{j≠y} softplus(d_j)`, which avoids overflow and
    vanishing gradients.

    `floor` is added to the probabilities inside both logarithms. The authors use 1e-8, which limits each logarithm to
    18.4; a classifier that is entirely wrong then receives no gradient.
    """

    scale: float = 1.0
    floor: float = 0.0
    needs = ("ova",)

    def __call__(self, output: Output, y: Tensor) -> Tensor:
        """Return one loss per sample, of shape (N,)."""
        odds = output.log_odds()
        own = odds.gather(1, y[:, None]).squeeze(1)
        # softplus is increasing, so the largest log-odds of the other classes give the largest loss. With a single
        # class, there are no others, and softplus(-inf) = 0.
        others = odds.scatter(1, y[:, None], -torch.inf).amax(dim=1)
        logs = functional.softplus(-own), functional.softplus(others)
        if self.floor:
            least = own.new_full((), math.log(self.floor))  # filled on the device, as CUDA graphs require
            logs = -torch.logaddexp(-logs[0], least), -torch.logaddexp(-logs[1], least)
        return self.scale * (logs[0] + logs[1])


ova = Ova()


def acceptance(output: Output) -> Tensor:
    """Return -(1/C) Σ_k log(1 - q_k) per sample, of shape (N,): 0 if all one-vs-all classifiers reject the sample."""
    return functional.softplus(output.log_odds()).mean(1)


CE = Part("ce", lambda: ce)
OVA = Part("ova", Ova)

OBJECTIVES: dict[str, ObjectiveKind] = {
    "ce": ObjectiveKind((CE,), ("close",), "cls"),
    "ce+ova": ObjectiveKind((CE, OVA), ("separate", "shared"), "bcls"),
    "ova": ObjectiveKind((OVA,), ("shared",), "bcls"),
}
"""Objectives by their `--objective` name. Systems add their own."""
