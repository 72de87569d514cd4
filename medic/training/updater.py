"""Update a model with the steps of an iteration, in a run or in a custom training loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from medic.models.heads import Head
from medic.objectives import Objective
from medic.strategies import Strategy, Update
from medic.strategies.optimizers import load_optimizer, optimizer_state
from medic.tasks import Grid, Step
from medic.tasks.lagged import softmax_sums
from medic.training.precision import Precision, arithmetic
from medic.utils import distributed
from medic.utils.modules import evaluating
from medic.utils.outputs import Output


@dataclass
class Updater:
    """A model with everything that is trained alongside it: objective, auxiliary networks and optimizers.

    An update never synchronises with the device, so it can be captured as a CUDA graph. `network` computes the outputs
    of `model` during training. It is the model itself or a compiled version.
    """

    model: nn.Module
    network: nn.Module
    strategy: Strategy
    objective: Objective
    optimizer: torch.optim.Optimizer
    grid: Grid
    domains: int
    """Upper bound (exclusive) of the domain labels."""
    device: torch.device
    precision: Precision = "fp32"
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        self.part = ""  # the running part, reported if CUDA graph capture fails
        self._heads = [module for module in self.model.modules() if isinstance(module, Head)]
        for network in self.objective.auxiliary:
            network.make_optimizers()

    def __call__(self, steps: Sequence[Step], probe: Step | None = None) -> Update:
        """Take one outer step. If there is a probe, the sampler learns from it."""
        for head in self._heads:
            head.renew()
        self._update_auxiliary(steps, before_model=True)
        self.part = f"the strategy {type(self.strategy).__name__}"
        self.optimizer.zero_grad()
        with arithmetic(self.precision, self.device):
            update = self.strategy(self.network, steps, self.objective)
        self.part = f"the optimizer {type(self.optimizer).__name__}"
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_([*self.network.parameters(), *self.objective.parameters()], self.clip_norm)
        self.optimizer.step()
        self._update_auxiliary(steps, before_model=False)
        self.part = f"the sampler {type(self.grid.sampler).__name__}"
        summary = None
        if probe is not None:
            summary = self._confusion(probe)
        elif self.grid.spec.classes is not None:
            summary = self.grid.sampler.summarise(update.logits, update.y, update.domain, self.domains)
        distributed.all_reduce([update.risks, summary])
        return replace(update, summary=summary)

    def _update_auxiliary(self, steps: Sequence[Step], before_model: bool) -> None:
        """Update the auxiliary networks that are scheduled before or after the model."""
        for network in self.objective.auxiliary:
            if network.before_model == before_model:
                self.part = f"the auxiliary network {type(network).__name__}"
                with arithmetic(self.precision, self.device):
                    network.update(self.network, steps)

    @torch.no_grad()
    def _confusion(self, probe: Step) -> Tensor:
        """Return softmax sums of the current model on fresh images, in evaluation mode."""
        with evaluating(self.model), arithmetic(self.precision, self.device):
            logits = Output.of(self.network(probe.x)).logits
        return softmax_sums(logits, probe.y, probe.domain, self.domains)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all state that an update changes."""
        return {
            "model": {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()},
            "optimizer": optimizer_state(self.optimizer),
            "strategy": self.strategy.state_dict(),
            "objective": {name: tensor.detach().clone() for name, tensor in self.objective.state_dict().items()},
            "auxiliary": [optimizer_state(optimizer) for optimizer in self._auxiliary_optimizers()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all state that an update changes."""
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.strategy.load_state_dict(state["strategy"])
        self.objective.load_state_dict(state["objective"])
        for optimizer, own in zip(self._auxiliary_optimizers(), state["auxiliary"], strict=True):
            load_optimizer(optimizer, own)

    def _auxiliary_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers of the auxiliary networks."""
        return [optimizer for network in self.objective.auxiliary for optimizer in network.optimizers]
