"""L2OT (Li et al. 2025): classes whose features are far apart.

Our interpretation: neither code nor formulas are public.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from medic.objectives.objective import Penalty, split_features
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter

SMOOTHING = 0.05
ROUNDS = 50


@dataclass(eq=False)
class Transport(Penalty, name="transport"):
    """λ mean_{a<b} exp(-OT_ab), with OT_ab the entropic optimal transport between two classes in a step.

    The cost is the squared distance between normalised features. Gradients flow through the cost, not through the plan.
    """

    weight: float = hyperparameter(0.1)
    needs = ("features",)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compute how close the classes in a step are to each other. Returns 0 for fewer than two classes."""
        unit = functional.normalize(torch.cat(split_features(output, step)))
        cost = (2 - 2 * unit @ unit.T).clamp(min=0)
        members = functional.one_hot(step.y, output.logits.shape[1]).bool().T
        # Created on the device, because CUDA graphs do not allow copies from the host.
        pairs = torch.triu_indices(len(members), len(members), offset=1, device=cost.device)
        first, second = members[pairs[0]], members[pairs[1]]
        plan = transport_plan(cost.detach(), first, second)
        both = (first.any(1) & second.any(1)).to(cost)
        nearness = (-(plan * cost).sum((1, 2))).exp() * both
        return self.weight * nearness.sum() / both.sum().clamp(min=1)


def transport_plan(cost: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute transport plans of shape (P, N, N) between P pairs of sets, with Sinkhorn iterations in log space.

    `rows` and `columns` are masks of shape (P, N) that select the two sets of each pair. Elements of a set have equal
    weights. The plan for an empty set is 0.
    """
    lowest = torch.finfo(cost.dtype).min / 4  # −∞ would produce NaN for an empty set
    allowed = rows[:, :, None] & columns[:, None, :]
    kernel = torch.where(allowed, -cost / SMOOTHING, lowest)
    log_rows = -rows.sum(1, keepdim=True).clamp(min=1).to(cost).log()
    log_columns = -columns.sum(1, keepdim=True).clamp(min=1).to(cost).log()
    u, v = torch.zeros_like(rows, dtype=cost.dtype), torch.zeros_like(columns, dtype=cost.dtype)
    for _ in range(ROUNDS):
        u = torch.where(rows, log_rows - (kernel + v[:, None, :]).logsumexp(2), 0)
        v = torch.where(columns, log_columns - (kernel + u[:, :, None]).logsumexp(1), 0)
    return torch.where(allowed, (kernel + u[:, :, None] + v[:, None, :]).exp(), 0)
