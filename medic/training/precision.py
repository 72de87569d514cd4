"""The device, and the precision of the network's products. Weights and losses are always float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medic.errors import MedicError, check_choice
from medic.utils.outputs import Output

Precision = Literal["fp32", "tf32", "bf16"]


def pick_device(name: str) -> torch.device:
    """Return a device by name; `auto` is a GPU if there is one."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise MedicError("device 'cuda': torch finds no GPU; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def pick_precision(name: str, device: torch.device) -> Precision:
    """Return a precision by name; `auto` is bf16 on a GPU that supports it and fp32 elsewhere."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if native else "fp32"
    return cast(Precision, name)


def emulates_bf16(device: torch.device) -> bool:
    """Whether a device has no bf16 instructions, as far as torch knows; only CPUs are asked."""
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    native = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # the latter two are of ARM
    return bool(capabilities) and not any(capabilities.get(name) for name in native)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in this precision inside.

    Casts of weights are not cached, because inner steps move the weights in place.
    """
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    # Under bf16, heads and penalties stay in full float32 because they need the precision.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


class Bf16Weights(nn.Module):
    """A network whose convolutions and linear layers get bf16 copies of their weights.

    Autocast casts every weight separately, forwards and backwards: a hundred small kernels per step instead of two. The
    values are the same. Other layers are left to autocast.
    """

    def __init__(self, network: nn.Module, part: nn.Module, compiled: bool) -> None:
        """Cast the layers in `part` of a network."""
        super().__init__()
        self.network = network
        names = {module: name for name, module in network.named_modules()}
        self._layers = [
            (f"{names[module]}.{name}", module, name)
            for module in part.modules()
            if type(module) in (nn.Conv2d, nn.Linear)
            for name in ("weight", "bias")
            if getattr(module, name) is not None
        ]
        self._call: Any = torch.compile(self._with, dynamic=False) if compiled else self._with

    def forward(self, x: Tensor) -> Output:
        """Forward a batch."""
        # Read from the layers each time, because a functional call may replace their weights.
        weights = [getattr(layer, name) for _, layer, name in self._layers]
        cast = _CastAll.apply(*weights) if weights else ()  # type: ignore[no-untyped-call]
        return self._call(cast, x)  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Output:
        """Return the outputs of the network's heads for features (N, F)."""
        return Output.of(self.network.classify(features))  # type: ignore[operator]

    def _with(self, weights: tuple[Tensor, ...], x: Tensor) -> Output:
        named = {name: weight for (name, _, _), weight in zip(self._layers, weights, strict=True)}
        return Output.of(functional_call(self.network, named, (x,)))


class _CastAll(torch.autograd.Function):
    """Cast float32 tensors to bf16, and gradients back, in one kernel each."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a weight without a gradient gets none
        return tuple(_cast(weights, torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # for a second derivative, which _foreach_copy_ does not support
            return tuple(None if gradient is None else gradient.float() for gradient in gradients)
        cast = iter(_cast(tuple(gradient for gradient in gradients if gradient is not None), torch.float32))
        return tuple(None if gradient is None else next(cast) for gradient in gradients)


def _cast(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
