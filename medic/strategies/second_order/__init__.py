"""Replacements for torch layers that are cheap to differentiate twice."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from medic.strategies.second_order.convolution import convolve
from medic.strategies.second_order.normalisation import normalise


def attend(*arguments: Any, **options: Any) -> torch.Tensor:
    """Compute attention with matrix products, because torch's fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*arguments, **options)


REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    torch.conv2d: convolve,
    nn.functional.batch_norm: normalise,
    scaled_dot_product_attention: attend,
}
"""Replacements, keyed by torch function. Each takes the same arguments as the original."""


class CheapSecondDerivatives(TorchFunctionMode):
    """Context manager that replaces layers whose second derivatives are slow in torch, without changing results."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement for a function, or the function itself if it has none."""
        return REPLACEMENTS.get(function, function)(*arguments, **(options or {}))
