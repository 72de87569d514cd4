"""Auxiliary networks: parts of an objective with their own optimizers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from medic.tasks import Step


class AuxiliaryNetwork(nn.Module):
    """A network beside the model, such as an adversary, that is updated once per iteration by its own optimizers.

    Strategies leave its parameters alone. The state of its `optimizers` is part of a checkpoint.
    """

    before_model = False
    """Whether it is updated before the model, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers: list[torch.optim.Optimizer] = []

    def make_optimizers(self) -> None:
        """Fill `optimizers`; called once the parameters are on the device they are trained on."""
        raise NotImplementedError(f"{type(self).__name__} has no method make_optimizers()")

    def update(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Update the network with the steps of an iteration; the model's weights stay.

        A pass of the model in here moves its batch-norm statistics once more. Use features that the objective kept from
        its own pass, `evaluating(model)` or `statistics_kept(model)` of `medic.utils.modules`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method update(model, steps)")


def adam(parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    """Return an Adam that a CUDA graph can hold."""
    trained = list(parameters)
    return torch.optim.Adam(trained, lr=lr, betas=betas, capturable=trained[0].is_cuda)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take one optimizer step down a loss, leaving all other parameters and their gradients untouched."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
