"""The losses of the paper: cross-entropy and one-vs-all."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from medic.errors import MedicError
from medic.outputs import Output


def ce(output: Output, y: Tensor) -> Tensor:
    """Cross-entropy of the close-set logits, -log p_y, per sample (N,)."""
    return functional.cross_entropy(output.logits, y, reduction="none")


@dataclass(frozen=True)
class Ova:
    """One-vs-all loss: each sample trains its own binary classifier and the hardest of the others.

    With q_k the positive probability of classifier k, per sample: `-scale · [log q_y + min_{j≠y} log(1 - q_j)]`.
    The paper has scale 1, its authors' code 0.5. Computed from d_k = log q_k / (1 - q_k) as
    `softplus(-d_y) + max_{j≠y} softplus(d_j)`, which neither overflows nor loses the gradient.
    """

    scale: float = 1.0

    def __call__(self, output: Output, y: Tensor) -> Tensor:
        """The loss per sample (N,)."""
        if output.ova is None:
            raise MedicError("the one-vs-all loss needs a model with a one-vs-all head: return Output(logits, ova)")
        if output.ova.shape[1:] != (2, output.logits.shape[1]):
            expected = f"(samples, 2, {output.logits.shape[1]}), the negative channel first"
            raise MedicError(f"one-vs-all logits have the shape {tuple(output.ova.shape)}: {expected}, is expected")
        log_odds = output.ova[:, 1] - output.ova[:, 0]
        own = log_odds.gather(1, y[:, None]).squeeze(1)
        # softplus is increasing, so the largest log-odds among the others has the largest loss; one class has no
        # others, and softplus(-inf) = 0.
        others = log_odds.scatter(1, y[:, None], -torch.inf).amax(dim=1)
        return self.scale * (functional.softplus(-own) + functional.softplus(others))


ova = Ova()
