"""Balance penalty: one-vs-all classifiers that accept as readily as they reject."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from medic.objectives.objective import Penalty
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter


@dataclass(eq=False)
class Balance(Penalty, name="balance"):
    """λ mean_c (mean_{y=c} q_c + mean_{y≠c} q_c - 1)² over all classes c with positive and negative samples.

    The paper gives no formula for option (iii) of its ablation. This penalty is our interpretation: it squares the
    imbalance that the paper discusses.
    """

    weight: float = hyperparameter(1.0)
    needs = ("ova",)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compute the imbalance of a step's one-vs-all outputs."""
        q = output.log_odds().sigmoid()
        own = functional.one_hot(step.y, q.shape[1]).to(q)
        positives, negatives = own.sum(0), (1 - own).sum(0)
        balance = (q * own).sum(0) / positives.clamp(min=1) + (q * (1 - own)).sum(0) / negatives.clamp(min=1) - 1
        both = ((positives > 0) & (negatives > 0)).to(q)
        return self.weight * (balance.square() * both).sum() / both.sum().clamp(min=1)
