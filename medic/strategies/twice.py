"""Layers that are as torch's own, and cheap to differentiate twice."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from medic.strategies.convolution import convolve
from medic.strategies.normalisation import normalise

CHEAPER: Mapping[Any, Callable[..., Any]] = {
    torch.conv2d: convolve,
    nn.functional.batch_norm: normalise,
}
"""What stands in for functions of torch's as layers call them, with their arguments."""


class DifferentiatedTwice(TorchFunctionMode):
    """Inside, layers whose second derivatives torch makes at a high price make them otherwise. Numbers are the same."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take over these layers; everything else is as it was."""
        return CHEAPER.get(function, function)(*arguments, **(options or {}))
