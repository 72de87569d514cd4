"""Convolutions whose gradients are differentiated again at the cost of convolutions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Shape = tuple[list[int], list[int], list[int], int]
"""Stride, padding, dilation and groups."""


class PlainConvolutions(TorchFunctionMode):
    """Inside, two-dimensional convolutions are differentiated twice by three further convolutions.

    Torch's own second derivative by the weights is a convolution with kernels as large as the images, over samples
    instead of channels, which no library is fast at: on a GPU an iteration of MEDIC takes half as long without it. The
    numbers are the same.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take over convolutions; everything else is as it was."""
        given = dict(options or {})
        if function is not torch.conv2d or isinstance(_argument("padding", 4, arguments, given, 0), str):
            return function(*arguments, **given)
        x, weight = _argument("input", 0, arguments, given), _argument("weight", 1, arguments, given)
        bias = _argument("bias", 2, arguments, given, None)
        stride, padding, dilation = (
            _pair(_argument(name, position, arguments, given, default))
            for name, position, default in (("stride", 3, 1), ("padding", 4, 0), ("dilation", 5, 1))
        )
        if torch.is_autocast_enabled(x.device.type):
            low = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(low), weight.to(low), None if bias is None else bias.to(low)
        shape = (stride, padding, dilation, _argument("groups", 6, arguments, given, 1))
        output = _Convolution.apply(x, weight, shape)  # type: ignore[no-untyped-call]
        return output if bias is None else output + bias[:, None, None]


def _argument(name: str, position: int, arguments: tuple[Any, ...], options: Mapping[str, Any], *default: Any) -> Any:
    if position < len(arguments):
        return arguments[position]
    return options.get(name, *default)


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value) * (2 // len(value))


def _convolve(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return torch.convolution(x, weight, None, *shape[:3], False, [0, 0], shape[3])


def _gradients(gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: Sequence[bool]) -> list[Tensor]:
    found = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *shape[:3], False, [0, 0], shape[3], [*wanted, False]
    )
    return list(found[:2])


class _Convolution(torch.autograd.Function):
    """y = x ∗ w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return _convolve(x, weight, shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        found = _Gradients.apply(gradient, *ctx.saved_tensors, ctx.shape, ctx.needs_input_grad[:2])  # type: ignore[no-untyped-call]
        return *found, None


class _Gradients(torch.autograd.Function):
    """The gradients by x and w of ⟨g, x ∗ w⟩, which is linear in each of the three."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: Sequence[bool]) -> Any:
        ctx.save_for_backward(gradient, x, weight)
        ctx.shape = shape
        ctx.set_materialize_grads(False)
        return tuple(_gradients(gradient, x, weight, shape, wanted))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_x: Tensor | None, by_weight: Tensor | None) -> Any:
        gradient, x, weight = ctx.saved_tensors
        again: Tensor | None = None
        if by_x is not None:
            again = _convolve(by_x, weight, ctx.shape)
        if by_weight is not None:
            second = _convolve(x, by_weight, ctx.shape)
            again = second if again is None else again + second
        found_x = found_weight = None
        if by_weight is not None and ctx.needs_input_grad[1]:
            found_x = _gradients(gradient, x, by_weight, ctx.shape, [True, False])[0]
        if by_x is not None and ctx.needs_input_grad[2]:
            found_weight = _gradients(gradient, by_x, weight, ctx.shape, [False, True])[1]
        return again, found_x, found_weight, None, None
