"""The precision of the network's products. Weights and losses are always float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def pick_precision(name: str, device: torch.device) -> Precision:
    """Return a precision by name; `auto` is bf16 on a GPU that supports it and fp32 elsewhere."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if native else "fp32"
    return cast(Precision, name)


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
