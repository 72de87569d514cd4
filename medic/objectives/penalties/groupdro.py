"""GroupDRO (Sagawa et al. 2020): domains that are met with more loss weigh more."""

import torch
from torch import Tensor, nn

from medic.errors import check_range
from medic.objectives.objective import Penalty, Setup
from medic.outputs import Output
from medic.tasks import Step


class GroupDro(Penalty):
    """Σ_d q_d L_d in place of the mean risk, where q_d ← q_d exp(η L_d), normalised, at every step."""

    compares = ordered = True
    shares: Tensor | None

    def __init__(self, eta: float = 1e-2) -> None:
        super().__init__()
        check_range("GroupDRO", eta=eta)
        self.eta = eta
        self.register_buffer("shares", None)

    def prepare(self, model: nn.Module | None, setup: Setup) -> None:
        """Start with equal shares, one a task."""
        self.shares = torch.full((setup.tasks,), 1 / setup.tasks)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """What the weighted risk has more than the mean one; `tasks` (m,) must come in the same order every time."""
        if self.shares is None:
            self.prepare(None, Setup(len(tasks)))
        assert self.shares is not None
        # Not as a product of exponentials: with a large loss it would overflow.
        shares = (self.shares.to(tasks).log() + self.eta * tasks.detach()).softmax(0)
        self.shares.copy_(shares)
        return ((shares - 1 / len(tasks)) * tasks).sum()
