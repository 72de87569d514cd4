"""The precision of arithmetic: what the network's products are computed in. Weights and losses are always float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def pick_precision(name: str, device: torch.device) -> Precision:
    """A precision by name: `auto` is bf16 on a GPU that has it and fp32 elsewhere."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if native else "fp32"
    return cast(Precision, name)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in this precision inside.

    Casts of weights are not cached: inner steps move the weights in place, and a cached copy would be the old one.
    """
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    # Under bf16 the products that are left in float32, of heads and penalties, are so because they need its digits.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution
