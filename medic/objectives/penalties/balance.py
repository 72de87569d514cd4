"""Equal output activation: one-vs-all classifiers that accept as readily as they reject."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from medic.objectives.objective import Penalty
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter


@dataclass(eq=False)
class Balance(Penalty, name="balance"):
    """λ mean_c (mean_{y=c} q_c + mean_{y≠c} q_c - 1)² over the classes c with samples on both sides.

    Our reading of option (iii) of the paper's ablation, which gives no formula: the balance its discussion asks for,
    squared.
    """

    weight: float = hyperparameter(1.0)
    needs = ("ova",)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Measure the imbalance of the one-vs-all outputs of a step."""
        q = output.log_odds().sigmoid()
        own = functional.one_hot(step.y, q.shape[1]).to(q)
        positives, negatives = own.sum(0), (1 - own).sum(0)
        balance = (q * own).sum(0) / positives.clamp(min=1) + (q * (1 - own)).sum(0) / negatives.clamp(min=1) - 1
        both = ((positives > 0) & (negatives > 0)).to(q)
        return self.weight * (balance.square() * both).sum() / both.sum().clamp(min=1)
