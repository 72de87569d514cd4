"""GroupDRO (Sagawa et al. 2020): domains with a larger loss weigh more."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medic.objectives.objective import Penalty, Setup
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, log10


@dataclass(eq=False)
class GroupDro(Penalty, name="groupdro"):
    """Σ_d q_d L_d in place of the mean risk, where q_d ← q_d exp(η L_d), normalised, at every step."""

    eta: float = hyperparameter(1e-2, search=log10("groupdro_eta", -3, -1))
    shares: Tensor | None = field(init=False)
    compares_tasks = fixed_order = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("shares", None)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Start with equal weights of the tasks."""
        self.shares = torch.full((setup.tasks,), 1 / setup.tasks)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Return the weighted risk minus the mean one; the tasks (m,) must keep their order."""
        if self.shares is None:
            self.shares = torch.full_like(tasks, 1 / len(tasks))
        # In logarithms, because the product of exponentials overflows for a large loss.
        shares = (self.shares.to(tasks).log() + self.eta * tasks.detach()).softmax(0)
        self.shares.copy_(shares)
        return ((shares - 1 / len(tasks)) * tasks).sum()
