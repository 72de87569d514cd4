"""GroupDRO (Sagawa et al. 2020): domains with a larger loss get a larger weight."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medic.objectives.objective import Penalty, Setup
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, log10


@dataclass(eq=False)
class GroupDro(Penalty, name="groupdro"):
    """Σ_d q_d L_d instead of the mean risk. Each step updates q_d ← q_d exp(η L_d) and normalises q."""

    eta: float = hyperparameter(1e-2, search=log10("groupdro_eta", -3, -1))
    shares: Tensor | None = field(init=False)
    compares_tasks = fixed_order = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("shares", None)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Initialise all task weights to the same value."""
        self.shares = torch.full((setup.tasks,), 1 / setup.tasks)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Return the weighted risk minus the mean risk. Task risks, of shape (m,), must keep their order."""
        if self.shares is None:
            self.shares = torch.full_like(tasks, 1 / len(tasks))
        # Use logarithms: the product of exponentials overflows for a large loss.
        shares = (self.shares.to(tasks).log() + self.eta * tasks.detach()).softmax(0)
        self.shares.copy_(shares)
        return ((shares - 1 / len(tasks)) * tasks).sum()
