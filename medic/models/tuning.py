"""Partial fine-tuning of a backbone: its last blocks, its normalisation layers, or low-rank adapters."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, counted
from medic.models.blocks import parameters_by_depth

TUNES = ("all", "last:N", "norm", "adapters", "head")
"""Values of `--tune`."""
ADAPTED = ("qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj", "proj", "out_proj", "fc1", "fc2")
"""Names of the linear layers in the attention and MLP blocks of timm models."""
NARROW = 8
"""Layers with fewer features, such as those that compute position biases from coordinates, get no adapter."""


@dataclass(frozen=True)
class Tune:
    """The part of a backbone that is trained in addition to the head."""

    kind: Literal["all", "last", "norm", "adapters", "head"]
    blocks: int = 0
    """Number of blocks, the N in `last:N`."""
    rank: int = 8
    """Rank of the adapters."""
    alpha: float = 16.0
    """Scale of the adapters, before division by their rank."""
    dropout: float = 0.0
    """Dropout probability for adapter inputs."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `all`, `last:N`, `norm`, `adapters` or `head`."""
        if match := re.fullmatch(r"last:([1-9]\d{0,3})", text):
            return cls("last", int(match[1]))
        if text not in ("all", "norm", "adapters", "head"):
            raise MedicError(f"tune must be {', '.join(TUNES[:-1])} or {TUNES[-1]}, got {text!r}")
        return cls(text)  # type: ignore[arg-type]


class LowRank(nn.Linear):
    """A linear layer with a low-rank adapter: W x + b + (alpha / rank) · B A dropout(x). Only A and B are trained.

    The weight and the bias keep their names, so that the layer can load the weights of a plain linear layer. B starts
    at zero, so that training starts from the pretrained network.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale, self.dropout = alpha / rank, dropout
        like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as nn.Linear does
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map features of shape (…, in_features) to shape (…, out_features)."""
        inside = functional.dropout(x, self.dropout, self.training) if self.dropout else x
        low = functional.linear(functional.linear(inside, self.lora_a), self.lora_b)
        return functional.linear(x, self.weight, self.bias) + self.scale * low

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return an equivalent plain linear layer."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        # Double precision avoids rounding the small product before it is added to the weight.
        product = self.lora_b.double() @ self.lora_a.double()
        layer.weight = nn.Parameter((self.weight.double() + self.scale * product).to(self.weight.dtype))
        layer.bias = self.bias
        return layer.train(self.training)


def tune_backbone(backbone: nn.Module, tune: Tune) -> None:
    """Freeze all parameters except those selected by `tune`. Inserts adapters if `tune` requests them."""
    if tune.kind == "all":
        return
    backbone.requires_grad_(False)
    if tune.kind == "adapters":
        _insert_adapters(backbone, tune)
    elif tune.kind == "norm":
        # Matched by name, because networks define their own classes, such as timm's RmsNorm.
        parts = [part for part in backbone.modules() if "norm" in type(part).__name__.lower()]
        norms = [parameter for part in parts for parameter in part.parameters(recurse=False)]
        if not norms:
            raise MedicError("tune 'norm' requires a backbone with trainable normalisation layers: use --tune last:1")
        _train(norms)
    elif tune.kind == "last":
        blocks = parameters_by_depth(backbone)
        if tune.blocks >= len(blocks):
            has = f"this backbone has only {counted(len(blocks) - 1, 'block')} after its stem"
            raise MedicError(f"tune 'last:{tune.blocks}': {has}; use --tune all or a smaller number")
        _train(parameter for block in blocks[-tune.blocks :] for parameter in block)


def _insert_adapters(backbone: nn.Module, tune: Tune) -> None:
    """Replace the linear layers in attention and MLP blocks with adapter layers."""
    places = [
        (part, name, layer)
        for part, name, layer in _find_layers(backbone)
        if type(layer) is nn.Linear and name in ADAPTED and min(layer.in_features, layer.out_features) >= NARROW
    ]
    if not places:
        raise MedicError(
            "tune 'adapters' requires a backbone with linear layers in attention or MLP blocks, such as a transformer: "
            "use --tune norm or last:N"
        )
    width = min(min(layer.in_features, layer.out_features) for _, _, layer in places)
    if tune.rank > width:
        raise MedicError(f"rank {tune.rank} exceeds the {width} features of a layer: use --lora-rank {width} or less")
    adapters: dict[nn.Module, LowRank] = {}
    for part, name, layer in places:
        if layer not in adapters:  # a network may use a layer twice
            adapters[layer] = LowRank(layer, tune.rank, tune.alpha, tune.dropout)
        setattr(part, name, adapters[layer])
        if hasattr(part, "qkv_bias_separate"):  # otherwise, BEiT, EVA and Swin V2 use the weight without the adapter
            setattr(part, "qkv_bias_separate", True)  # noqa: B010, mypy takes the attributes of modules for tensors


def merge_adapters(model: nn.Module) -> bool:
    """Replace adapter layers with equivalent plain layers, whose weights are trainable.

    Return whether the model had any.
    """
    places = [(part, name, layer) for part, name, layer in _find_layers(model) if isinstance(layer, LowRank)]
    merged = {layer: layer.merged() for layer in dict.fromkeys(layer for _, _, layer in places)}
    for part, name, layer in places:
        setattr(part, name, merged[layer])
    return bool(places)


def _find_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Return every layer with the module and the name through which the network uses it, also if it does so twice."""
    layers = ((part, name, layer) for part in model.modules() for name, layer in part._modules.items())
    return [(part, name, layer) for part, name, layer in layers if layer is not None]


def _train(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_()
