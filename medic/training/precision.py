"""Select the device, and the precision of matrix products. Weights and losses are always float32."""

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
    """Return a device by name. `auto` selects a GPU if one is available."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise MedicError("device 'cuda': torch finds no GPU; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def pick_precision(name: str, device: torch.device) -> Precision:
    """Return a precision by name. `auto` selects bf16 on GPUs that support it, and fp32 otherwise."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if native else "fp32"
    return cast(Precision, name)


def emulates_bf16(device: torch.device) -> bool:
    """Return whether a CPU lacks bf16 instructions, as far as torch can tell. Always False for other devices."""
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    native = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # the last two are ARM
    return bool(capabilities) and not any(capabilities.get(name) for name in native)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Use this precision inside the context.

    Autocast does not cache weight casts, because inner steps change the weights in place.
    """
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    # With bf16, heads and penalties stay in full float32, because they require the precision.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


class Bf16Weights(nn.Module):
    """A network whose convolutions and linear layers use bf16 copies of their weights.

    Two kernels per step cast all weights at once. Autocast would launch about a hundred small kernels, one per weight
    and direction, for the same values. Autocast still handles all other layers.
    """

    def __init__(self, network: nn.Module, part: nn.Module, compiled: bool) -> None:
        """Cast only the layers inside `part` of the network."""
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
        # Read the weights each time, because a functional call may replace them.
        weights = [getattr(layer, name) for _, layer, name in self._layers]
        cast = _CastAll.apply(*weights) if weights else ()  # type: ignore[no-untyped-call]
        return self._call(cast, x)  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Output:
        """Apply the network's heads to features of shape (N, F)."""
        return Output.of(self.network.classify(features))  # type: ignore[operator]

    def _with(self, weights: tuple[Tensor, ...], x: Tensor) -> Output:
        named = {name: weight for (name, _, _), weight in zip(self._layers, weights, strict=True)}
        return Output.of(functional_call(self.network, named, (x,)))


class _CastAll(torch.autograd.Function):
    """A cast of float32 tensors to bf16, and of gradients back to float32, with one kernel each."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # keep missing gradients as None
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
