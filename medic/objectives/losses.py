"""The losses of the paper: cross-entropy and one-vs-all."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, check_range
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
        odds = output.log_odds()
        own = odds.gather(1, y[:, None]).squeeze(1)
        # softplus is increasing, so the largest log-odds among the others has the largest loss; one class has no
        # others, and softplus(-inf) = 0.
        others = odds.scatter(1, y[:, None], -torch.inf).amax(dim=1)
        return self.scale * (functional.softplus(-own) + functional.softplus(others))


ova = Ova()


def acceptance(output: Output) -> Tensor:
    """-(1/C) Σ_k log(1 - q_k) per sample (N,): 0 where all one-vs-all classifiers reject it."""
    return functional.softplus(output.log_odds()).mean(1)


class Arpl(nn.Module):
    """ARPL (Chen et al. 2021): cross-entropy of the distances to reciprocal points, and a bound on the known space.

    Per sample `CE(l / temperature, y) + weight · max(0, ‖f - P_y‖² / F - R + 1)`, R the radius; the margin of 1 and the
    one radius are the authors' code's.
    """

    def __init__(self, weight: float = 0.1, temperature: float = 1.0) -> None:
        super().__init__()
        check_range("ARPL", weight=weight)
        check_range("ARPL", above=True, temperature=temperature)
        self.weight, self.temperature = weight, temperature

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """The loss per sample (N,)."""
        if output.distance is None:
            raise MedicError("the loss of ARPL needs a head of reciprocal points: --head reciprocal")
        outside = output.distance.gather(1, y[:, None]).squeeze(1)
        own = functional.cross_entropy(output.logits / self.temperature, y, reduction="none")
        return own + self.weight * (outside + 1).relu()


class OneRing(nn.Module):
    """OneRing (Yang et al. 2022): unknown must be the second best class of every known sample.

    Per sample `CE(o, y) + weight · CE(o without o_y, unknown)` over C + 1 outputs o.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_range("OneRing", weight=weight)
        self.weight = weight

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """The loss per sample (N,)."""
        if output.unknown is None:
            raise MedicError("the loss of OneRing needs an output for unknown: --head ring")
        outputs = torch.cat([output.logits, output.unknown[:, None]], dim=1)
        others = outputs.scatter(1, y[:, None], -torch.inf)
        second = others.logsumexp(1) - output.unknown
        return functional.cross_entropy(outputs, y, reduction="none") + self.weight * second
