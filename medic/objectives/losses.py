"""The losses of the paper, cross-entropy and one-vs-all, and the objectives made of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from medic.objectives.objective import ObjectiveKind
from medic.utils.outputs import Output
from medic.utils.parts import Part


def ce(output: Output, y: Tensor) -> Tensor:
    """Return the cross-entropy of the closed-set logits, -log p_y, per sample (N,)."""
    return functional.cross_entropy(output.logits, y, reduction="none")


@dataclass(frozen=True)
class Ova:
    """One-vs-all loss: each sample trains its own binary classifier and the hardest of the others.

    With q_k the positive probability of classifier k, per sample: `-scale · [log q_y + min_{j≠y} log(1 - q_j)]`.
    The paper has scale 1, its authors' code 0.5. Computed from d_k = log q_k / (1 - q_k) as
    `softplus(-d_y) + max_{j≠y} softplus(d_j)`, which neither overflows nor loses the gradient.

    `floor` is added to the probabilities inside both logarithms. The authors' 1e-8 bounds a logarithm by 18.4, where
    the gradient of a classifier that is entirely wrong vanishes.
    """

    scale: float = 1.0
    floor: float = 0.0
    needs = ("ova",)

    def __call__(self, output: Output, y: Tensor) -> Tensor:
        """Return the loss per sample (N,)."""
        odds = output.log_odds()
        own = odds.gather(1, y[:, None]).squeeze(1)
        # softplus increases, so the largest log-odds among the others has the largest loss. A single class has no
        # others, and softplus(-inf) = 0.
        others = odds.scatter(1, y[:, None], -torch.inf).amax(dim=1)
        logs = functional.softplus(-own), functional.softplus(others)
        if self.floor:
            least = own.new_full((), math.log(self.floor))  # filled on the device, so that a CUDA graph can hold it
            logs = -torch.logaddexp(-logs[0], least), -torch.logaddexp(-logs[1], least)
        return self.scale * (logs[0] + logs[1])


ova = Ova()


def acceptance(output: Output) -> Tensor:
    """Return -(1/C) Σ_k log(1 - q_k) per sample (N,): 0 where all one-vs-all classifiers reject it."""
    return functional.softplus(output.log_odds()).mean(1)


CE = Part("ce", lambda: ce)
OVA = Part("ova", Ova)

OBJECTIVES: dict[str, ObjectiveKind] = {
    "ce": ObjectiveKind((CE,), ("close",), "cls"),
    "ce+ova": ObjectiveKind((CE, OVA), ("separate", "shared"), "bcls"),
    "ova": ObjectiveKind((OVA,), ("shared",), "bcls"),
}
"""Objectives by the name that `--objective` knows them by; systems add their own."""
