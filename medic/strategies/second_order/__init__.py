"""Layers equal to torch's, but cheap to differentiate twice."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from medic.strategies.second_order.convolution import convolve
from medic.strategies.second_order.normalisation import normalise

REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    torch.conv2d: convolve,
    nn.functional.batch_norm: normalise,
}
"""Functions that replace torch's, with the same arguments."""


class CheapSecondDerivatives(TorchFunctionMode):
    """Replaces, inside, layers whose second derivatives are expensive in torch; the values stay the same."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement of a function, or the function itself."""
        return REPLACEMENTS.get(function, function)(*arguments, **(options or {}))
