"""Parts of an objective that are trained by an optimizer of their own."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from medic.tasks import Step


class Player(nn.Module):
    """A network beside the model, such as an adversary, which takes its turn once in every iteration.

    Strategies leave its parameters alone. What `start` puts into `optimizers` is remembered with a run.
    """

    first = False
    """Whether its turn comes before the model's update, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers: list[torch.optim.Optimizer] = []

    def start(self) -> None:
        """Make the optimizers; the parameters are by now where they will be trained."""
        raise NotImplementedError

    def play(self, model: nn.Module, steps: Sequence[Step]) -> None:
        """Take a turn: one update, or more, with the steps of the iteration. The model's weights stay."""
        raise NotImplementedError


def adam(parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    """An Adam that a CUDA graph can hold."""
    trained = list(parameters)
    return torch.optim.Adam(trained, lr=lr, betas=betas, capturable=trained[0].is_cuda)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of an optimizer down a loss; nothing but its own parameters is touched, not even a gradient."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
