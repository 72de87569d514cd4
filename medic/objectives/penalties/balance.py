"""Equal output activation: one-vs-all classifiers that say yes as readily as no."""

from torch import Tensor
from torch.nn import functional

from medic.errors import check_range
from medic.objectives.objective import Penalty
from medic.outputs import Output
from medic.tasks import Step


class Balance(Penalty):
    """λ mean_c (mean_{y=c} q_c + mean_{y≠c} q_c - 1)² over the classes c with samples on both sides.

    Our reading of option (iii) of the paper's ablation, which gives no formula: the balance that its discussion asks
    for, squared.
    """

    ova = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_range("the balance", weight=weight)
        self.weight = weight

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """The imbalance of the one-vs-all outputs on a step."""
        q = output.log_odds().sigmoid()
        own = functional.one_hot(step.y, q.shape[1]).to(q)
        positives, negatives = own.sum(0), (1 - own).sum(0)
        balance = (q * own).sum(0) / positives.clamp(min=1) + (q * (1 - own)).sum(0) / negatives.clamp(min=1) - 1
        both = ((positives > 0) & (negatives > 0)).to(q)
        return self.weight * (balance.square() * both).sum() / both.sum().clamp(min=1)
