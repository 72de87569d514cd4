"""Auxiliary networks, which belong to an objective and have their own optimizers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from medic.tasks import Step


class AuxiliaryNetwork(nn.Module):
    """A network that trains alongside the model, such as an adversary, and is updated once per iteration.

    Strategies do not change the parameters of an auxiliary network. Checkpoints include the state of its `optimizers`.
    """

    before_model = False
    """Whether to update the network before the model instead of after it."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers: list[torch.optim.Optimizer] = []

    def make_optimizers(self) -> None:
        """Fill `optimizers`. medic calls this once, after moving the parameters to the training device."""
        raise NotImplementedError(f"{type(self).__name__} must define make_optimizers()")

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Update the network with the steps of one iteration, without changing the model's weights.

        A forward pass through the model in this method would update its batch-norm statistics a second time. To avoid
        this, reuse features from the objective's own pass, or wrap the call in `evaluating(model)` or
        `statistics_kept(model)` from `medic.utils.modules`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(model, steps)")


def adam(parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    """Create an Adam optimizer that works inside a CUDA graph."""
    trained = list(parameters)
    return torch.optim.Adam(trained, lr=lr, betas=betas, capturable=trained[0].is_cuda)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take one optimizer step on a loss, leaving all other parameters and their gradients untouched."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
